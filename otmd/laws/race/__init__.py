"""The exponential race: token i arrives at rate q_i, and the first n arrivals are drafts without replacement.

``quadrature`` has the nodes in time, ``containment`` g(H) and the optimal H, ``inclusion`` the probability of
each token to be drafted.
"""
