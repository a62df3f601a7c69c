"""The live page: runs, studies and deployments under way, from what their folders hold."""
