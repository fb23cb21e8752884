"""What all stores share: engines, transactions, leases, the schema, migrations, sealed secrets.

Rows never leave a store; values do. No wall clock and no random id: both are passed in.
"""
