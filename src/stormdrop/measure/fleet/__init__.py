"""Machines of a cluster of Ray that measure kernels together.

fleet.py          a measurer on them
identity.py       what makes two machines of a fleet equal
selection.py      which machines of the cluster a process takes
lease.py          one of these machines as the process sees it
fleet_machine.py  what runs on the machine
status.py         all machines of a cluster, whoever uses them
ray_cluster.py    connecting to a cluster of Ray
"""
