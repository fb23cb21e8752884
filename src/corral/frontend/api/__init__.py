"""What all routes share: routes as data, their context, bodies and answers; and the pages that describe them."""
