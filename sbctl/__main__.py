"""`python -m sbctl`"""

import sys

from sbctl.cli.main import main

sys.exit(main())
