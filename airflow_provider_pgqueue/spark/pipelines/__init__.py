"""What the volume needs: drain, export, triage and the others, each a module with options, a function and a command."""
