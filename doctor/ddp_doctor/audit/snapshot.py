"""Copies the files of a run at its first checkpoint between two optimizer steps: a second run can start on them.

Copied are the files that the script itself has written, and all that the run has written into a checkpoint's folder.
The copies are made right before the next optimizer step, when all files of the checkpoint have been written.
"""

import os
import shutil

MAX_BYTES = 2**31


class Snapshot:
    """The files that the run has written so far, and their copies.

    written      path -> whether a file was there before the run wrote it
    by_script    the paths of `written` that the script itself wrote
    checkpoints  the paths of `written` that torch.save wrote
    folders      that the run has made
    """

    def __init__(self, log):
        self.log, self.copies = log, f"{log.path}.snapshot"
        self.written, self.by_script, self.checkpoints, self.folders = {}, set(), set(), set()
        self.step_count, self.saved_since_step, self.done = 0, False, False

    def record_write(self, path, by_script=True):
        """Call it before the write. Files in the doctor's own folder, written by its recorder, are left out."""
        if os.path.dirname(path) == os.path.realpath(os.path.dirname(self.log.path)):
            return
        self.written.setdefault(path, os.path.lexists(path))
        if by_script:
            self.by_script.add(path)

    def record_save(self, path):
        self.checkpoints.add(path)
        self.saved_since_step = True

    def record_rename(self, source, target):
        """Call it before a file, or a folder with files of the run, is renamed."""
        for path in [path for path in self.written if _within(path, source)]:
            new = target + path[len(source) :]
            self.written.setdefault(new, os.path.lexists(new))
            self.by_script |= {new} if path in self.by_script else set()
            if path in self.checkpoints:
                self.record_save(new)
        self.folders |= {target + folder[len(source) :] for folder in self.folders if _within(folder, source)}

    def before_step(self):
        if self.saved_since_step and self.step_count and not self.done:
            self.done = True
            try:
                self.copy_files()
            except OSError as error:
                self.log.event("audit failed", text=f"files were not copied: {error!r}")
        self.saved_since_step = False
        self.step_count += 1

    def copy_files(self):
        paths = [path for path in self.paths() if os.path.isfile(path) or os.path.islink(path)]
        if sum(os.lstat(path).st_size for path in paths) > MAX_BYTES:
            return
        os.mkdir(self.copies)
        copies = {path: os.path.join(self.copies, str(number)) for number, path in enumerate(paths)}
        for path, copy in copies.items():
            shutil.copy2(path, copy, follow_symlinks=False)
        self.log.event("snapshot", steps=self.step_count, files=copies, folders=sorted(self.folders))

    def paths(self):
        checkpoint_folders = {os.path.dirname(path) for path in self.checkpoints}
        return [path for path in self.written if path in self.by_script or os.path.dirname(path) in checkpoint_folders]

    def end(self):
        """Records the files that the run has written and, of the folders it made, those with a checkpoint."""
        paths = self.paths()
        with_checkpoint = [folder for folder in self.folders if any(_within(path, folder) for path in self.checkpoints)]
        older = [path for path in paths if self.written[path]]
        self.log.event("written", files=paths, older=older, folders=sorted(with_checkpoint))


def _within(path, folder):
    return path == folder or path.startswith(folder + os.sep)
