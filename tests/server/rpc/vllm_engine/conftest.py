"""The gateway's protocol (PyPI: smg-grpc-proto) is an extra: without it these tests are not collected."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("smg_grpc_proto") else ["test_*.py"]
