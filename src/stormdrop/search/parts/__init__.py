"""What several searches share, and what would make one too long.

chains.py           the points that annealing moves
cost_model.py       what Ansor's searches learn from
judge.py            the decisions of Droplet Search whether to move
droplet_options.py  what can be chosen of it
proposer.py         the proposals of storm
"""
