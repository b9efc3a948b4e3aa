package main

import "fmt"

// product is what a package is of.
type product struct {
	name, about string
	programs    []string // below the tree
	scripts     map[string]string
}

func productOf(name string) (product, error) {
	for _, p := range []product{
		{
			"berth", "Node agent that runs Kubernetes pods, with a container runtime of its own",
			[]string{"usr/bin/berth", "usr/libexec/berth/berth-helper", "usr/libexec/berth/berth-wasm"},
			agentScripts,
		},
		{
			"berth-control", "Control plane of a Kubernetes cluster in one process: certificates, etcd and the API server",
			[]string{"usr/bin/berth-control"},
			controlScripts,
		},
	} {
		if p.name == name {
			return p, nil
		}
	}
	return product{}, fmt.Errorf("-name %q: must be berth or berth-control", name)
}

// agentScripts are what the packagers run, besides what they do themselves. The agent is started by the first
// installation, as Debian's services are; an upgrade starts it anew, and pods go on.
var agentScripts = map[string]string{
	"postinst": `#!/bin/sh
set -e
# A chroot or an image has no systemd that runs: the first boot does what is left out here.
if [ -d /run/systemd/system ]; then
	systemd-tmpfiles --create /usr/lib/tmpfiles.d/berth.conf || true
	systemctl daemon-reload || true
	/usr/lib/systemd/systemd-modules-load /usr/lib/modules-load.d/berth.conf || /lib/systemd/systemd-modules-load berth.conf || true
	/lib/systemd/systemd-sysctl 90-berth.conf || true
	if [ -f /usr/libexec/berth/.installed ]; then
		systemctl try-restart berth.service berth-runtime.service || true
		# By the drop-in, kubelet.service is berth, too.
		if systemctl show -p ExecStart kubelet.service 2>/dev/null | grep -q 'path=/usr/bin/berth '; then
			systemctl try-restart kubelet.service || true
		fi
	elif [ -x /usr/sbin/policy-rc.d ] && ! /usr/sbin/policy-rc.d berth start; then
		systemctl enable berth.service || true
	elif berth check >/run/berth-check 2>&1; then
		systemctl enable --now berth.service || true
	else
		cat /run/berth-check >&2 || true
		echo "berth is installed, and this machine cannot run pods yet: see above. Then: systemctl enable --now berth" >&2
	fi
	rm -f /run/berth-check
else
	mkdir -p -m 0755 /etc/berth
	mkdir -p -m 0700 /etc/berth/manifests
	systemctl enable berth.service >/dev/null 2>&1 || true
fi
: >/usr/libexec/berth/.installed
`,
	// What the arguments say: remove (deb), 0 (rpm). An upgrade leaves all as it is.
	"prerm": `#!/bin/sh
set -e
case "$1" in
remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl disable --now berth.service berth-runtime.service || true
		if systemctl show -p ExecStart kubelet.service 2>/dev/null | grep -q 'path=/usr/bin/berth '; then
			systemctl disable --now kubelet.service || true
			echo "kubelet.service was berth, and is disabled: its drop-in names a program that is gone" >&2
		fi
		# Nobody stops a slice whose unit is gone. Processes in it would end with it, and are not ours to end.
		if [ -z "$(find /sys/fs/cgroup/berth.slice /sys/fs/cgroup/systemd/berth.slice -name cgroup.procs -exec cat {} + 2>/dev/null)" ]; then
			systemctl stop berth.slice || true
		fi
	fi
	# What the last upgrade has kept for the way back, and one that was cut off: the next package is not to go on with it.
	if ! berth upgrade --forget; then
		rm -rf /usr/libexec/berth/upgrade
		for file in /usr/bin/berth /usr/libexec/berth/berth-helper /usr/libexec/berth/berth-wasm \
			/usr/lib/systemd/system/berth.service /usr/lib/systemd/system/berth-runtime.service /usr/lib/systemd/system/berth.slice; do
			rm -f "$file.previous" "$file.upgrade" "$file.back"
		done
	fi
	rm -f /usr/libexec/berth/.installed
	;;
esac
`,
	"postrm": `#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true
fi
case "$1" in
purge)
	rmdir /etc/berth/manifests /etc/berth 2>/dev/null || true
	;;
esac
`,
}

// controlScripts are those of the control plane. It is not started by the first installation: whether this machine is
// to be a cluster of its own, or a member of one, nobody but the administrator knows. An upgrade starts it anew.
var controlScripts = map[string]string{
	"postinst": `#!/bin/sh
set -e
systemd-sysusers /usr/lib/sysusers.d/berth-control.conf || true
systemd-tmpfiles --create /usr/lib/tmpfiles.d/berth-control.conf || true
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true
	systemctl try-restart berth-control.service || true
	if ! systemctl is-enabled --quiet berth-control.service; then
		echo "berth-control is installed. A new cluster: systemctl enable --now berth-control. A member of one: berth-control join first." >&2
	fi
fi
`,
	// What the arguments say: remove (deb), 0 (rpm). An upgrade leaves all as it is.
	"prerm": `#!/bin/sh
set -e
case "$1" in
remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl disable --now berth-control.service || true
	fi
	;;
esac
`,
	"postrm": `#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true
fi
case "$1" in
purge)
	rmdir /etc/berth-control /var/log/berth-control 2>/dev/null || true
	if ! rmdir /var/lib/berth-control 2>/dev/null && [ -d /var/lib/berth-control ]; then
		echo "/var/lib/berth-control has a cluster, or a member of one, and is left for you to remove" >&2
	fi
	;;
esac
`,
}
