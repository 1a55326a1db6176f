import sys

from ddp_course.authoring.commands import main

sys.exit(main())
