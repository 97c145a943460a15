"""From a query's tree to a plan: options read, rules applied, the shape checked, the job graph built."""
