"""``python -m feddm.engines`` is a worker process."""

import signal

if __name__ == "__main__":
    # Ctrl-C is for the parent, which then ends its workers, also while they import torch.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from feddm.engines.worker import main

    main()
