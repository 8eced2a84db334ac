"""``python -m feddm.runtime`` is a worker process."""

import signal

if __name__ == "__main__":
    # Ctrl-C is for the parent, which then ends its workers, also while they import torch.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from feddm.runtime.worker import main

    main()
