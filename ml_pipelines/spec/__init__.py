"""What the user asks for, strictly validated, and the manifest it becomes; pure."""
