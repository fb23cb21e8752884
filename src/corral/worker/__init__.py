"""The worker process: joins a frontend, stays a member, and does on its machine what the frontend asks for."""
