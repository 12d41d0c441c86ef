"""The exponential race: token i arrives at rate q_i, and the first n arrivals are drafts without replacement.

``quadrature`` has the nodes in time, ``block_sums`` what is summed over tokens, ``containment`` g(H),
``inclusion`` the probability of each token to be drafted, and ``cut`` the optimal subset H.
"""
