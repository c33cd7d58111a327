"""The message queue scheme `pgqueue` of common-messaging."""
