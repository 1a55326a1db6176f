"""One module holds the differences between the supported versions of torch."""

import json
import re
import runpy
import warnings

import pytest
import torch
import torch.distributed as dist
import versions
from torch.nn.parallel import DistributedDataParallel

from ddp_course.authoring import commands as authoring
from ddp_course.authoring.notebook_run import read_notebook
from ddp_course.distributed import torch_versions

pytestmark = pytest.mark.smoke

NAMES = ("all_gather_single", "reduce_scatter_single")
NOT_EVERYWHERE = re.compile(rf"dist\.({'|'.join(NAMES)})\b|(?<![\"\w])(forward_sync|broadcast)_buffers=")
OLD_NAMES = ("all_gather_into_tensor", "reduce_scatter_tensor")


def code():
    """Yields (file, source) of the package, the answers and the cells of notebooks."""
    for folder in ("ddp_course", "solutions"):
        for file in sorted((authoring.ROOT / folder).rglob("*.py")):
            yield str(file.relative_to(authoring.ROOT)), file.read_text(encoding="utf-8")
    for path in authoring.select(authoring.ROOT, ("notebooks", "solutions"), []):
        for cell in read_notebook(path).cells:
            if cell.cell_type == "code":
                yield f"{path.parent.name}/{path.name} ({cell.id})", cell.source


def test_no_code_calls_a_name_that_a_supported_torch_lacks():
    calls = {file: match[0] for file, source in code() if (match := NOT_EVERYWHERE.search(source))}
    assert not calls, "import these from ddp_course.distributed.torch_versions"


def test_an_older_torch_gets_its_own_names(monkeypatch):
    """As under torch 2.12, which lacks NAMES."""
    for name, old in zip(NAMES, OLD_NAMES, strict=True):
        monkeypatch.delattr(dist, name, raising=False)
        monkeypatch.setattr(dist, old, old)
    older = runpy.run_path(torch_versions.__file__)
    assert [older[name] for name in NAMES] == list(OLD_NAMES)


def test_ddp_takes_the_argument_of_forward_sync_buffers_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        with pytest.raises(ValueError, match="process group has not been initialized"):
            DistributedDataParallel(None, **torch_versions.forward_sync_buffers(False))


def test_every_stage_of_a_v_begins_without_the_messages_of_torch_2_11():
    schedules = {file: source for file, source in code() if "DualPipeV" in source and "PipelineStage" in source}
    assert schedules
    for file, source in schedules.items():
        assert "without_first_messages(" in source, file


REPORT = """<testsuites><testsuite>
<testcase classname="tests.test_notebooks" name="test_notebook_runs[notebooks/02_ranks_and_collectives]"/>
<testcase classname="tests.test_notebooks" name="test_notebook_runs[notebooks/00_your_lab]"><failure/></testcase>
<testcase classname="doctor.tests.test_attach" name="test_a_job"/>
<testcase classname="tests.test_gpu" name="test_nccl"><skipped/></testcase>
</testsuite></testsuites>"""


def test_a_run_with_another_torch_is_recorded_and_shown(tmp_path):
    report, record = tmp_path / "report.xml", {}
    report.write_text(REPORT)
    assert not versions.add(record, report)  # a notebook failed
    [(key, parts)] = record.items()
    parts["tests.test_that_is_no_more"] = parts["tests.test_notebooks notebooks/99_no_more"] = {}
    report.write_text(REPORT.replace("<failure/>", ""))
    assert versions.add(record, report)
    assert key.startswith(torch.__version__.partition("+")[0]) and len(parts) == 4
    cells = [line.split("|")[4:8] for line in versions.page(record).splitlines()[-3:]]
    rows = ["|".join(map(str.strip, row)) for row in cells]
    assert rows == ["notebooks 00 02|2|0|0", "doctor|1|0|0", "trainers and units|0|0|1"]


def test_the_page_of_versions_and_the_table_of_readme_are_those_of_the_records():
    record = json.loads(versions.RECORD.read_text())
    assert versions.PAGE.read_text(encoding="utf-8") == versions.page(record)
    readme = versions.README.read_text(encoding="utf-8")
    assert readme == versions.with_table(readme, record)


def test_the_source_of_ddp_shows_whether_it_hides_its_copies_of_buffers(monkeypatch):
    def of_2_11(self):
        self._sync_module_buffers(0)

    assert torch_versions.hides_buffer_copies() == (torch.__version__ >= (2, 12))
    monkeypatch.setattr(DistributedDataParallel, "_sync_buffers", of_2_11)
    assert not torch_versions.hides_buffer_copies()
