"""Exceptions.

* FedDMError               an error you can fix; the command line prints it as one line
  - ConfigError            a value in the configuration cannot be used
    + UnfitAlgorithmError  the algorithm does not support the requested privacy
  - DataError              a data set is missing, damaged or not as expected
  - PartitionError         the data cannot be split as requested
  - UploadError            a client's upload is not what the algorithm expects
  - EmptyRoundError        no client returned anything to learn from
  - EngineError            a client could not be run
  - LostClientsError       too few clients finished a round
  - LedgerError            a privacy ledger cannot be written, read or trusted
  - RunDirectoryError      a run directory cannot be created, read or resumed
  - MissingExtraError      an optional part of feddm is not installed
  - BudgetError            a release would exceed a privacy budget or a client's policy
"""

from __future__ import annotations


class FedDMError(Exception):
    """Base class of all errors you can fix; the message is one line that says how."""


class ConfigError(FedDMError):
    """A value in the configuration cannot be used."""


class UnfitAlgorithmError(ConfigError):
    """The algorithm does not support the requested privacy."""


class DataError(FedDMError):
    """A data set is missing, damaged or not as expected."""


class PartitionError(FedDMError):
    """The data cannot be split as requested."""


class UploadError(FedDMError):
    """A client's upload is not what the algorithm expects."""


class EmptyRoundError(FedDMError):
    """No client returned anything to learn from."""


class EngineError(FedDMError):
    """A client could not be run."""


class LostClientsError(FedDMError):
    """Too few clients finished a round."""


class LedgerError(FedDMError):
    """A privacy ledger cannot be written, read or trusted."""


class RunDirectoryError(FedDMError):
    """A run directory cannot be created, read or resumed."""


class MissingExtraError(FedDMError):
    """An optional part of feddm is not installed; the message says how to install it."""


class BudgetError(FedDMError):
    """A release would exceed a privacy budget or a client's policy.

    Args:
        text: The message for the client itself.
        told: What a server may read of it, which has no path and nothing about other
            federations; by default the message.
    """

    def __init__(self, text: str, told: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.told = told or text

    def __reduce__(self) -> tuple[type[BudgetError], tuple[str, str]]:
        return type(self), (self.text, self.told)
