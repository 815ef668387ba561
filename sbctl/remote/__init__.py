"""Reaching hosts: sessions over SSH or on this machine, bootstrap, wheelhouse. The one owner of `paramiko`."""
