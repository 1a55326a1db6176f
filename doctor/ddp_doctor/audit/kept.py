"""Keeps the files of a run as they stood at a checkpoint in its middle, so that a second run can start there.

Those that the script writes itself, those that torch.save writes, and what lies beside one of these. They are copied
before the first update that follows the first checkpoint after an update: what belongs to it is written by then.
"""

import os
import shutil

MOST_BYTES = 2**31


class Kept:
    """written: path -> was there such a file before?; asked: those that the script itself wrote; saved: checkpoints."""

    def __init__(self, log):
        self.log, self.copies = log, f"{log.path}.kept"
        self.written, self.asked, self.saved, self.folders = {}, set(), set(), set()
        self.updates, self.fresh, self.done = 0, False, False

    def writes(self, path, asked=True):
        """Call it before the write. Files in the doctor's own folder, written by its recorder, are left out."""
        if os.path.dirname(path) == os.path.realpath(os.path.dirname(self.log.path)):
            return
        self.written.setdefault(path, os.path.lexists(path))
        if asked:
            self.asked.add(path)

    def saves(self, path):
        self.saved.add(path)
        self.fresh = True

    def renames(self, source, target):
        """Call it before a file, or a folder with files of the run, is renamed."""
        for path in [path for path in self.written if _within(path, source)]:
            new = target + path[len(source) :]
            self.written.setdefault(new, os.path.lexists(new))
            self.asked |= {new} if path in self.asked else set()
            if path in self.saved:
                self.saves(new)
        self.folders |= {target + folder[len(source) :] for folder in self.folders if _within(folder, source)}

    def before_update(self):
        if self.fresh and self.updates and not self.done:
            self.done = True
            try:
                self.keep()
            except OSError as error:
                self.log.event("audit failed", text=f"files were not kept: {error!r}")
        self.fresh = False
        self.updates += 1

    def keep(self):
        paths = [path for path in self.ours() if os.path.isfile(path) or os.path.islink(path)]
        if sum(os.lstat(path).st_size for path in paths) > MOST_BYTES:
            return
        os.mkdir(self.copies)
        names = {path: os.path.join(self.copies, str(number)) for number, path in enumerate(paths)}
        for path, name in names.items():
            shutil.copy2(path, name, follow_symlinks=False)
        self.log.event("kept", updates=self.updates, files=names, folders=sorted(self.folders))

    def ours(self):
        checkpoint_folders = {os.path.dirname(path) for path in self.saved}
        return [path for path in self.written if path in self.asked or os.path.dirname(path) in checkpoint_folders]

    def end(self):
        """Records the files that the run has written and, of the folders it made, those with a checkpoint."""
        paths = self.ours()
        holding = [folder for folder in self.folders if any(_within(path, folder) for path in self.saved)]
        older = [path for path in paths if self.written[path]]
        self.log.event("written", files=paths, older=older, folders=sorted(holding))


def _within(path, folder):
    return path == folder or path.startswith(folder + os.sep)
