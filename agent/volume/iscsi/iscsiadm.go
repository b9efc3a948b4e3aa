package iscsi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/internal/monitor"
)

// iscsiadm is the program of open-iscsi that speaks to its daemon.
type iscsiadm struct {
	path      string
	databases []string // where its records may be
}

func findAdm() (*iscsiadm, error) {
	path, err := exec.LookPath("iscsiadm")
	if err != nil {
		return nil, errors.New("iSCSI needs the program iscsiadm on the node: install open-iscsi (Debian, Ubuntu, Alpine) or iscsi-initiator-utils (Fedora, RHEL)")
	}
	return &iscsiadm{path, databases}, nil
}

// The exit codes of iscsiadm(8) that say that there is nothing to do.
const (
	codeExists = 15
	codeNone   = 21
)

// drain is how long what iscsiadm has started, as its daemon, may keep its output open after it has ended itself.
const drain = 5 * time.Second

// run runs iscsiadm. What it was told is not in its errors: it may be a password. An exit with one of the codes that
// are fine is none.
func (a *iscsiadm) run(ctx context.Context, args []string, fine ...int) (string, error) {
	cmd := exec.CommandContext(ctx, a.path, args...)
	cmd.WaitDelay = drain
	var out []byte
	err := monitor.Fork(func() (err error) {
		out, err = cmd.CombinedOutput()
		return err
	})
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // it has ended well itself
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && slices.Contains(fine, exit.ExitCode()) {
		return string(out), nil
	}
	if err != nil {
		return "", fmt.Errorf("iscsiadm: %w: %s", err, strings.Join(strings.Fields(string(out)), " "))
	}
	return string(out), nil
}

func (a *iscsiadm) update(ctx context.Context, record []string, name, value string) error {
	if _, err := a.run(ctx, slices.Concat(record, []string{"-o", "update", "-n", name, "-v", value})); err != nil {
		return fmt.Errorf("set %s: %w", name, err)
	}
	return nil
}

// nodeRecord is the record of a target by one of its portals; "" = by all of them.
func nodeRecord(disk diskRecord, portal string) []string {
	record := []string{"-m", "node", "-T", disk.IQN, "-I", disk.Iface}
	if portal != "" {
		record = append(record, "-p", portal)
	}
	return record
}

func (a *iscsiadm) deleteNode(ctx context.Context, disk diskRecord, portal string) error {
	_, err := a.run(ctx, append(nodeRecord(disk, portal), "-o", "delete"), codeNone)
	return err
}

func discoveryRecord(portal string) []string {
	return []string{"-m", "discoverydb", "-t", "sendtargets", "-p", portal}
}

// hasDiscovery says whether there is a discovery record. That one is missing has no exit code of its own.
func (a *iscsiadm) hasDiscovery(ctx context.Context, portal string) (bool, error) {
	out, err := a.run(ctx, []string{"-m", "discoverydb"}, codeNone)
	return listsDiscovery(out, portal), err
}

// listsDiscovery finds a portal among discovery records, a line each: "192.0.2.1:3260 via sendtargets". Those of IPv6
// have no brackets.
func listsDiscovery(text, portal string) bool {
	want := strings.NewReplacer("[", "", "]", "").Replace(portal) + " via sendtargets"
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) == want {
			return true
		}
	}
	return false
}

func (a *iscsiadm) deleteDiscovery(ctx context.Context, portal string) error {
	if has, err := a.hasDiscovery(ctx, portal); err != nil || !has {
		return err
	}
	_, err := a.run(ctx, append(discoveryRecord(portal), "-o", "delete"))
	return err
}

// chapKeys are what a Secret of the type kubernetes.io/iscsi-chap may have for sessions and for discovery, after this
// prefix. The latter two are for a target that is to prove itself.
var chapKeys = []string{"username", "password", "username_in", "password_in"}

const (
	sessionAuth   = "node.session.auth."
	discoveryAuth = "discovery.sendtargets.auth."
)

// useCHAP tells a record to use CHAP. Where open-iscsi keeps its records somewhere else than is known, iscsiadm is
// given the passwords as arguments.
func (a *iscsiadm) useCHAP(ctx context.Context, r record, prefix string, secret map[string][]byte) error {
	for _, key := range chapKeys[:2] {
		if len(secret[prefix+key]) == 0 {
			return fmt.Errorf("the Secret for CHAP has no %s%s", prefix, key)
		}
	}
	var values [][2]string
	for _, key := range chapKeys {
		value := secret[prefix+key]
		if bytes.ContainsFunc(value, unicode.IsControl) {
			return fmt.Errorf("%s%s in the Secret for CHAP has control characters (a line feed at its end?)", prefix, key)
		}
		if len(value) > 0 {
			values = append(values, [2]string{prefix + key, string(value)})
		}
	}
	if err := a.update(ctx, r.args, prefix+"authmethod", "CHAP"); err != nil {
		return err
	}
	if done, err := a.put(r, values); done || err != nil {
		return err
	}
	for _, v := range values {
		if err := a.update(ctx, r.args, v[0], v[1]); err != nil {
			return err
		}
	}
	return nil
}

// makeIface makes the interface record, like the one that the volume names.
func (k *Kind) makeIface(ctx context.Context, adm *iscsiadm, name string, s *corev1.ISCSIPersistentVolumeSource) error {
	k.ifaces.Lock()
	defer k.ifaces.Unlock()
	base, err := adm.run(ctx, []string{"-m", "iface", "-I", s.ISCSIInterface, "-o", "show"})
	if err != nil {
		return fmt.Errorf("iscsiInterface %q: %w", s.ISCSIInterface, err)
	}
	want := parseIface(base)
	if s.InitiatorName != nil {
		want["iface.initiatorname"] = *s.InitiatorName
	}
	record := []string{"-m", "iface", "-I", name}
	made, err := adm.hasIface(ctx, name)
	if err == nil && !made {
		_, err = adm.run(ctx, append(record, "-o", "new"))
	}
	var now string
	if err == nil {
		now, err = adm.run(ctx, append(record, "-o", "show"))
	}
	if err != nil {
		return fmt.Errorf("make interface: %w", err)
	}
	has := parseIface(now)
	for key, value := range want {
		if has[key] != value {
			if err := adm.update(ctx, record, key, value); err != nil {
				return fmt.Errorf("make interface: %w", err)
			}
		}
	}
	return nil
}

// removeIface removes an interface record that no other volume needs.
func (k *Kind) removeIface(ctx context.Context, adm *iscsiadm, dir, volume, name string) error {
	k.ifaces.Lock()
	defer k.ifaces.Unlock()
	needed, err := k.records.Others(dir, volume, func(d diskRecord) bool { return d.Iface == name })
	if err != nil || needed {
		return err
	}
	if has, err := adm.hasIface(ctx, name); err != nil || !has {
		return err
	}
	_, err = adm.run(ctx, []string{"-m", "iface", "-I", name, "-o", "delete"}, codeNone)
	return err
}

// hasIface says whether there is an interface record. That one is missing has no exit code of its own.
func (a *iscsiadm) hasIface(ctx context.Context, name string) (bool, error) {
	out, err := a.run(ctx, []string{"-m", "iface"}, codeNone)
	// default tcp,<empty>,<empty>,<empty>,<empty>
	return strings.HasPrefix(out, name+" ") || strings.Contains(out, "\n"+name+" "), err
}

// parseIface takes what iscsiadm shows of an interface: "iface.name = value" a line. What is not set, and its name, are
// left out.
func parseIface(text string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(line, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if ok && strings.HasPrefix(name, "iface.") && value != "" && value != "<empty>" && name != "iface.iscsi_ifacename" {
			out[name] = value
		}
	}
	return out
}

// ownDiscoveries are the portals that there is no record of which is an administrator's.
func (k *Kind) ownDiscoveries(ctx context.Context, adm *iscsiadm, portals []string) ([]string, error) {
	var out []string
	for _, portal := range portals {
		has, err := adm.hasDiscovery(ctx, portal)
		if err != nil {
			return nil, err
		}
		// Any volume will do, this one too: it has recorded it before.
		ours, err := k.records.Others("", "", func(d diskRecord) bool { return slices.Contains(d.Discovered, portal) })
		if err != nil {
			return nil, err
		}
		if ours || !has {
			out = append(out, portal)
		}
	}
	return out, nil
}

// discover asks a portal for its targets with the secrets for that, and holds it to having this one. An administrator's
// record of the portal is left as it is, and used.
func (a *iscsiadm) discover(ctx context.Context, disk diskRecord, portal string, secret map[string][]byte) error {
	record := append(discoveryRecord(portal), "-I", disk.Iface)
	if slices.Contains(disk.Discovered, portal) {
		if _, err := a.run(ctx, append(record, "-o", "new"), codeExists); err != nil {
			return err
		}
		if err := a.useCHAP(ctx, discoveryRecordOf(portal), discoveryAuth, secret); err != nil {
			return err
		}
	}
	// Nonpersistent: the targets that the portal has beside this one get no records.
	out, err := a.run(ctx, append(record, "-o", "nonpersistent", "--discover"))
	if err != nil {
		return fmt.Errorf("discover targets: %w", err)
	}
	for line := range strings.Lines(out) {
		// 192.0.2.1:3260,1 iqn.2001-04.com.example:disk
		if fields := strings.Fields(line); len(fields) == 2 && fields[1] == disk.IQN {
			return nil
		}
	}
	return errors.New("discover targets: the portal does not have this one")
}

// login makes a session and returns its number. The records of ours that it needs are made again, whatever an earlier
// try has left.
func (k *Kind) login(ctx context.Context, adm *iscsiadm, disk diskRecord, portal string, v diskVolume) (int, error) {
	if v.source.DiscoveryCHAPAuth {
		if err := adm.discover(ctx, disk, portal, v.secret); err != nil {
			return 0, err
		}
	}
	record := nodeRecord(disk, portal)
	if err := adm.deleteNode(ctx, disk, portal); err != nil {
		return 0, err
	}
	if _, err := adm.run(ctx, append(record, "-o", "new")); err != nil {
		return 0, fmt.Errorf("make record: %w", err)
	}
	for _, set := range [][2]string{
		{"node.startup", "manual"},                    // not at the next boot, when the pod may be gone
		{"node.session.scan", "manual"},               // the target's other disks are none of the pod's
		{"node.session.initial_login_retry_max", "1"}, // the step is tried again, and the next portal may work
	} {
		if err := adm.update(ctx, record, set[0], set[1]); err != nil {
			return 0, err
		}
	}
	if v.source.SessionCHAPAuth {
		if err := adm.useCHAP(ctx, nodeRecordOf(disk, portal), sessionAuth, v.secret); err != nil {
			return 0, err
		}
	}
	if _, err := adm.run(ctx, append(record, "--login"), codeExists); err != nil {
		return 0, err
	}
	sessions, err := k.kernel.ownSessions(disk)
	if err != nil {
		return 0, err
	}
	if len(sessions) == 0 {
		return 0, errors.New("there is no session after the login")
	}
	return sessions[0].id, nil
}

// logout ends the session of a disk's target, if there is one. None of its disks may be in use: what is not written yet
// would be lost.
func (k *Kind) logout(ctx context.Context, adm *iscsiadm, disk diskRecord) error {
	sessions, err := k.kernel.ownSessions(disk)
	if err != nil {
		return err
	}
	for _, s := range sessions {
		if err := k.kernel.notInUse(s.id, -1); err != nil {
			return err
		}
		if _, err := adm.run(ctx, []string{"-m", "session", "-r", strconv.Itoa(s.id), "-u"}, codeNone); err != nil {
			return fmt.Errorf("log out of session %d: %w", s.id, err)
		}
	}
	return nil
}
