"""From a query's tree to a plan: read the options, apply the rules, check the shape, build the job graph."""
