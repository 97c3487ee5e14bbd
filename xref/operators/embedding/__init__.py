"""The token embedding, `out[p, :] = weight[token_ids[p], :]`: its contract, calls, checks, faults and diagnosis."""
