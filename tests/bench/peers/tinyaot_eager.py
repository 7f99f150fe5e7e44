"""tinyaot's eager mode."""

from peer_api import serve

from peers.tinyaot_common import TinyaotTrainer, versions

if __name__ == "__main__":
    serve(TinyaotTrainer, versions)
