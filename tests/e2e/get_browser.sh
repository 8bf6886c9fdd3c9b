#!/bin/sh
# The browser that tests drive: installed where that can be done; where not, said in a line. Never a reason to fail.
if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then
  exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "installing chromium for the tests in a browser"
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
    chromium chromium-driver; } >/dev/null 2>&1
fi
if ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null; then
  echo "no browser is to be had: tests in a browser are skipped (Debian: apt-get install chromium chromium-driver)"
fi
exit 0
