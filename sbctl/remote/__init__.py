"""How hosts are reached: bootstrap, one typed channel a host, uploads; the same over SSH and on this machine. Only here is paramiko imported."""
