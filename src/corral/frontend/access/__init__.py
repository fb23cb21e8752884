"""Who is calling, and what they may do. Knows no database: what it needs is passed in."""
