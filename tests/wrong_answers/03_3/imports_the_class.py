# mistake: hands over the class of the course's package
# state: wrong
# check: built by hand
# message: called by no line of your file

from ddp_course.parallel.by_hand import BucketedDataParallel  # noqa: F401
