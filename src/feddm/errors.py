"""Exceptions.

* FedDMError               what a user can mend; the command line prints it in one line
  - ConfigError            a value in the configuration cannot be used
    + UnfitAlgorithmError  the algorithm has nothing of the privacy that is asked for
  - DataError              a data set is missing, damaged or not what it should be
  - PartitionError         the data cannot be split as asked
  - UploadError            a client's upload is not what the algorithm expects
  - EmptyRoundError        no client returned anything to learn from
  - EngineError            a client could not be run
  - LostClientsError       too few clients delivered in a round
  - LedgerError            what a client keeps about its privacy cannot be used
  - RunDirectoryError      a run directory cannot be made, read or continued
  - MissingExtraError      a part of feddm that is not installed
  - BudgetError            more would be released than a budget or a client's policy allows
"""


class FedDMError(Exception):
    """Base of all errors that a user can mend; the message is one line that says how."""


class ConfigError(FedDMError):
    """A value in the configuration cannot be used."""


class UnfitAlgorithmError(ConfigError):
    """The algorithm cannot be protected in the way that is asked for."""


class DataError(FedDMError):
    """A data set is missing, damaged or not what it should be."""


class PartitionError(FedDMError):
    """The data cannot be split as asked."""


class UploadError(FedDMError):
    """A client's upload is not what the algorithm expects."""


class EmptyRoundError(FedDMError):
    """No client returned anything to learn from."""


class EngineError(FedDMError):
    """A client could not be run."""


class LostClientsError(FedDMError):
    """Too few clients delivered in a round."""


class LedgerError(FedDMError):
    """What a client keeps about its privacy cannot be written, read or trusted."""


class RunDirectoryError(FedDMError):
    """A run directory cannot be made, read or continued."""


class MissingExtraError(FedDMError):
    """A part of feddm is not installed; the message says how to install it."""


class BudgetError(FedDMError):
    """More would be released than a budget or a client's policy allows."""
