#!/bin/sh
# Makes the archive of the test image: Debian's static busybox, a link for each applet, and users and groups to test with.
set -eu
out=$1
entries=
for applet in $(busybox --list); do
	[ "$applet" = busybox ] || entries="$entries /bin/$applet@busybox"
done
# The links are words without spaces, so the list may be split.
# shellcheck disable=SC2086
CGO_ENABLED=0 go run -trimpath ./test/mkimage -o "$out" -name berth.test/busybox:1 -cmd sh \
	/bin/busybox="$(command -v busybox)" $entries \
	"/etc/passwd:root:x:0:0:root:/root:/bin/sh
app:x:1000:1000:app:/home/app:/bin/sh
" "/etc/group:root:x:0:
app:x:1000:
extra:x:2000:app
" /root/ /home/app/ /tmp/ /proc/ /sys/ /dev/ /etc/ /var/run/ /usr/bin/env@/bin/env
