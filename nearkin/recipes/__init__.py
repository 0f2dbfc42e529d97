"""The recipes shipped with nearkin, one YAML file a method."""
