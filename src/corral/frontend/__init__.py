"""The control process: one room for each noun of the product.

A room may import those before it: store, record, access, nodes, operations, backends, models, serving, rules,
diagnosis. Inside a room `decide` is pure, `store` is all of its SQL, `shapes` makes answers of values, and `routes` are
thin, a layer above the services of all rooms. All other modules are services: load, decide, apply.
"""
