"""Long runs over the public interface of ``otmd``: ``python -m experiments`` lists them."""
