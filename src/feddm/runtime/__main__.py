"""``python -m feddm.runtime`` starts a worker process."""

import signal

if __name__ == "__main__":
    # Ctrl-C is for the parent, which ends its workers, even while they import torch.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from feddm.runtime.worker import main

    main()
