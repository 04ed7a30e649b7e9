"""Who may call the server: certificates, bearer tokens, JSON Web Tokens, scopes and limits by identity."""
