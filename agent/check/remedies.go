package check

// remedies say what to do, by the name of the probe that has found something.
func remedies() map[string]string {
	const controller = "take the controller out of cgroup_disable= on the kernel's command line, and start the machine again; "
	return map[string]string{
		"root":   "run it as root: sudo berth check.",
		"kernel": "install a kernel of the distribution's backports, or a newer release of it.",
		"clock": "set the time, and have it kept: timedatectl set-ntp true, or a service such as chrony; on a machine without a battery " +
			"let the agent start after time-sync.target (systemctl enable systemd-time-wait-sync).",
		"cgroups": "have control groups mounted at --cgroup-mount: mount -t cgroup2 none /sys/fs/cgroup, or start by systemd, which does.",
		"cgroup memory": controller + "with v1, and where the kernel has it off, as on a Raspberry Pi, add cgroup_enable=memory " +
			"swapaccount=1 there, or systemd.unified_cgroup_hierarchy=1 for v2.",
		"cgroup cpu":  controller + "the kernel needs CONFIG_CGROUP_SCHED and CONFIG_CFS_BANDWIDTH.",
		"cgroup pids": controller + "the kernel needs CONFIG_CGROUP_PIDS.",
		"PSI":         "add psi=1 to the kernel's command line.",
		"overlay": "modprobe overlay; or have --root-dir on a file system that overlay can write to: ext4, btrfs, xfs with ftype=1, not on " +
			"another overlay or NFS.",
		"nf_tables": "modprobe -a nf_tables nft_chain_nat nft_masq nft_nat; a kernel without them needs CONFIG_NF_TABLES, CONFIG_NFT_NAT and " +
			"CONFIG_NFT_MASQ. After an update of the kernel start the machine again: modules of the one that runs are gone.",
		"nf_tables bridge": "modprobe nft_meta_bridge; a kernel without it needs CONFIG_NF_TABLES_BRIDGE.",
		"bridge":           "modprobe bridge.",
		"veth":             "modprobe veth.",
		"kubelet": "systemctl disable --now kubelet (k3s, k0s, rke2), before the agent starts; docs/migrate-from-kubelet.md says how its pods " +
			"come along. `berth runtime` is for a kubelet that is to stay.",
		"berth": "stop the other one, or give this one --run-dir, --root-dir, --log-dir, --cgroup-root, --bridge-name and --pod-cidr of its own.",
		"ports": "stop who has the port, or give the agent another one by the flag that is named, 0 for none.",
		"package": "install the package of the version that is to run (dpkg --install, rpm --upgrade --oldpackage), which puts all of its files " +
			"back; pods go on.",
		"upgrade":    "berth upgrade --resume finishes it, and berth upgrade --rollback takes it back; pods go on.",
		"disk":       "give --root-dir a disk of its own, an SSD at best; look at what else writes with iostat -x 1.",
		"API server": "do what it says; docs/joining.md has more. The agent's log tells of each change.",
		"room":       "berth prune --dry-run shows what is no longer needed; else give --root-dir a larger disk.",
	}
}
