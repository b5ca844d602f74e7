"""What cost a run its time: one decision from facts to ordered diagnoses."""

from dask_otel.core.diagnosis.decision import Diagnosis as Diagnosis
from dask_otel.core.diagnosis.decision import diagnose as diagnose
from dask_otel.core.diagnosis.decision import ranked as ranked
from dask_otel.core.diagnosis.kinds import KINDS as KINDS
