"""What a host does when it is asked through `sbctl-runtime node --stdio`: observe, install, activate, fetch, hand bundles over, remove."""
