package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berth-node/berth/agent"
	"github.com/berth-node/berth/agent/api/client"
	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/cri"
	"github.com/berth-node/berth/install"
	"github.com/berth-node/berth/install/release"
	"github.com/berth-node/berth/install/upgrade"
	"github.com/berth-node/berth/internal/commandline"
)

// upgrading is what `berth upgrade` was asked for.
type upgrading struct {
	proof            release.Proof
	resume, rollback bool
	forget, dryRun   bool
	binDir, rootDir  string
	restart          string
	ready            time.Duration
	runDir           string
	out              io.Writer
}

func upgradeCommand(runDir func() string) *cobra.Command {
	u := upgrading{}
	cmd := &cobra.Command{
		Use: "upgrade FILE | --resume | --rollback | --forget", Short: "Replace berth on this machine by another version, with a way back",
		Long: `Replace the programs by those of a release: a tar.gz with the programs, berth itself with berth-helper beside it, or a package, which dpkg
or rpm installs. A digest (--sha256, or a SHA256SUMS beside the file) or a signature has to say that it is the release that is meant.

The agent is stopped, its records are copied, the files are replaced, and the new agent is waited for; pods go on running. When it is not
ready in time, the old programs and records come back by themselves. What is done is recorded before it is done: after this command was
killed, the next one finishes that first, or takes it back with --rollback. --rollback also takes back the last upgrade, for which the
version before is kept until the next one or --forget. Where dpkg has installed berth, dpkg installs the version before again.`,
		Example: "  berth upgrade berth_1.2.0_amd64.tar.gz\n  berth upgrade --sha256 3f0a... berth_1.2.0_amd64.deb\n" +
			"  berth upgrade --signature berth.sig --key release.pem berth.tar.gz\n  berth upgrade --rollback",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			u.runDir, u.out = runDir(), cmd.OutOrStdout()
			defer withoutTerminal()()
			wanted := 0
			for _, one := range []bool{len(args) == 1, u.resume, u.rollback, u.forget} {
				if one {
					wanted++
				}
			}
			if wanted != 1 {
				return commandline.Usage(errors.New("one of a FILE, --resume, --rollback and --forget must be given"))
			}
			return u.run(cmd.Context(), slices.Concat(args, []string{""})[0])
		},
	}
	f := cmd.Flags()
	f.StringVar(&u.proof.SHA256, "sha256", "", "SHA-256 digest that the file must have, in hex (default that in a SHA256SUMS beside it)")
	f.StringVar(&u.proof.Signature, "signature", "", "file with an Ed25519 signature of the file, raw or in base64")
	f.StringVar(&u.proof.Key, "key", "", "file with the public key of the signature, in PEM")
	f.BoolVar(&u.proof.Insecure, "insecure", false, "install what nothing has proven to be the release that is meant, too")
	f.BoolVar(&u.resume, "resume", false, "finish an upgrade that was cut off")
	f.BoolVar(&u.rollback, "rollback", false, "take back an upgrade that was cut off, or the last one")
	f.BoolVar(&u.forget, "forget", false, "remove what is kept for the way back from the last upgrade")
	f.BoolVar(&u.dryRun, "dry-run", false, "check the file and say what would be done, and do nothing")
	f.StringVar(&u.binDir, "bin-dir", "", "directory of the programs, where neither berth install nor a package has put them")
	f.StringVar(&u.rootDir, "root-dir", "", "root directory of the agent (default that of the agent that runs, or /var/lib/berth)")
	f.StringVar(&u.restart, "restart-command", "", "command of the shell that starts the agent, where it is no service of systemd")
	f.DurationVar(&u.ready, "ready-timeout", readyPatience, "how long the new agent may take to be ready before the old one comes back")
	return cmd
}

// target is what is upgraded.
type target struct {
	dir      string            // where upgrades are recorded
	programs map[string]string // paths by name
	in       *install.Installation
	packaged bool
}

func (u *upgrading) target() (*target, error) {
	at := func(l install.Layout) *target {
		return &target{dir: filepath.Join(l.Libexec, upgradesDir), programs: map[string]string{
			"berth": filepath.Join(l.Bin, "berth"), "berth-helper": filepath.Join(l.Libexec, "berth-helper"),
			"berth-wasm": filepath.Join(l.Libexec, "berth-wasm"),
		}}
	}
	if u.binDir != "" {
		dir, err := filepath.Abs(u.binDir)
		if err != nil {
			return nil, err
		}
		if _, err := os.Stat(filepath.Join(dir, "berth")); err != nil {
			return nil, fmt.Errorf("--bin-dir: %w", err)
		}
		return at(install.Layout{Bin: dir, Libexec: dir}), nil
	}
	in := &install.Installation{Root: "/", Layout: install.Local()}
	args, installed, err := in.Installed()
	if err != nil {
		return nil, err
	}
	if in.Args = args; installed {
		t := at(in.Layout)
		t.in = in
		return t, nil
	}
	t := at(install.Packaged())
	t.packaged = true
	if _, err := os.Stat(t.programs["berth"]); err != nil {
		return nil, errors.New("neither berth install nor a package has installed berth here: --bin-dir says where it is")
	}
	return t, nil
}

func (u *upgrading) run(ctx context.Context, file string) error {
	t, err := u.target()
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("programs are replaced for the whole machine, which root may: sudo berth upgrade")
	}
	if u.forget {
		if u.dryRun {
			return nil
		}
		return forgetUpgrades(t.dir, true)
	}
	if u.runDir, err = filepath.Abs(u.runDir); err != nil {
		return fmt.Errorf("--run-dir: %w", err)
	}
	all, err := upgrade.Open(t.dir, func(what string) { fmt.Fprintln(u.out, what) })
	if err != nil {
		return err
	}
	defer all.Close()
	if err := forgetSuperseded(ctx, all, t.packaged, u.dryRun, u.out); err != nil {
		return err
	}
	if file == "" {
		return u.finish(ctx, all, t)
	}
	if cut, err := all.UnderWay(); err != nil {
		return err
	} else if cut != nil && u.dryRun {
		return fmt.Errorf("%w: `berth upgrade --resume` finishes it, and --rollback takes it back", upgrade.ErrUnderWay)
	} else if cut != nil {
		n, err := decodeNode(cut.Node, t.in)
		if err != nil {
			return err
		}
		// Whether it is finished or undone, the machine is whole after it.
		if err := all.Resume(ctx, n); err != nil && !errors.Is(err, upgrade.ErrRolledBack) {
			return err
		}
	}
	return u.begin(ctx, all, t, file)
}

// finish finishes or undoes what is recorded.
func (u *upgrading) finish(ctx context.Context, all *upgrade.Upgrades, t *target) error {
	found, err := all.UnderWay()
	if err == nil && found == nil && u.rollback {
		found, err = all.Last()
	}
	if err != nil {
		return err
	}
	if found == nil {
		if u.rollback {
			return upgrade.ErrNothing
		}
		fmt.Fprintln(u.out, "No upgrade was cut off.")
		return nil
	}
	if u.dryRun {
		fmt.Fprintf(u.out, "The upgrade from %s to %s is %s.\n", found.From, found.To, found.State)
		return nil
	}
	n, err := decodeNode(found.Node, t.in)
	if err != nil {
		return err
	}
	if u.restart != "" {
		n.Restart = u.restart
	}
	do := all.Resume
	if u.rollback {
		do = all.Rollback
	}
	return u.watching(ctx, n, func() error { return do(ctx, n) })
}

// begin upgrades to a release.
func (u *upgrading) begin(ctx context.Context, all *upgrade.Upgrades, t *target, file string) error {
	stage, err := all.Stage()
	if err != nil {
		return err
	}
	defer func() {
		// What a cut-off upgrade needs of it stays: a package is installed again.
		if cut, err := all.UnderWay(); err == nil && cut == nil {
			_ = os.RemoveAll(stage)
		}
	}()
	r, err := release.Open(file, u.proof, stage)
	if err != nil {
		return err
	}
	n, err := findNode(ctx, u.runDir, u.restart)
	if err != nil {
		return err
	}
	n.in, n.Ready, n.Program = t.in, u.ready, t.programs[release.Programs[0]]
	j, err := u.job(ctx, t, r, stage)
	if err != nil {
		return err
	}
	p, err := u.place()
	if err != nil {
		return err
	}
	j.Stores = append(cri.Stores(p.RootDir, p.RunDir), agent.Stores(p)...)
	if j.Node, err = json.Marshal(n); err != nil {
		return fmt.Errorf("record how the agent is started: %w", err)
	}
	u.explain(j, n, r)
	if u.dryRun {
		return nil
	}
	if r.Kind == release.Deb {
		if j.Before, err = keepPackage(ctx, filepath.Join(t.dir, upgrade.PackagesName), n.Program); err != nil {
			return err
		}
	}
	return u.watching(ctx, n, func() error { return all.Run(ctx, j, n) })
}

// explain says what is about to be done.
func (u *upgrading) explain(j upgrade.Job, n *upgradedNode, r *release.Release) {
	fmt.Fprintf(u.out, "upgrade from %s to %s (sha256:%s)\n", cmp.Or(j.From, "what is there"), cmp.Or(j.To, "the package"), r.SHA256)
	if !n.Running {
		fmt.Fprintf(u.out, "no agent runs in %s: nothing is started\n", n.RunDir)
	}
	if u.dryRun {
		for _, f := range j.Files {
			fmt.Fprintf(u.out, "replace   %s\n", f.Path)
		}
		for _, s := range j.Stores {
			fmt.Fprintf(u.out, "copy      %s\n", s)
		}
	}
}

// place is where the agent lives: by the flag, by what it has left in the run directory, by the command line of an
// older one that leaves nothing, or by how it was installed.
func (u *upgrading) place() (config.Place, error) {
	p := config.Default().Place
	p.RunDir = u.runDir
	if u.rootDir != "" {
		p.RootDir = u.rootDir
		return p, p.Complete()
	}
	err := p.Recall(pflag.NewFlagSet("agent", pflag.ContinueOnError))
	if errors.Is(err, fs.ErrNotExist) {
		if p.RootDir, err = u.rootOfOlder(); err == nil && p.RootDir == "" {
			p.RootDir, err = u.rootOfInstalled()
		}
	}
	if err != nil {
		return p, fmt.Errorf("find the agent's root directory: %w; --root-dir says where it is", err)
	}
	return p, p.Complete()
}

// rootOfOlder is the root directory that the agent's command line says, or its default; "" when none runs.
func (u *upgrading) rootOfOlder() (string, error) {
	pid := lockHolder(u.runDir)
	if pid == 0 {
		return "", nil
	}
	root := config.Default().RootDir
	given := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	given.ParseErrorsAllowlist.UnknownFlags = true
	given.SetOutput(io.Discard)
	given.StringVar(&root, "root-dir", root, "")
	if err := given.Parse(strings.Split(string(procFile(pid, "cmdline")), "\x00")); err != nil {
		return "", err
	}
	if cwd, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "cwd")); err == nil && !filepath.IsAbs(root) {
		root = filepath.Join(cwd, root) // it was given there
	}
	return root, nil
}

// rootOfInstalled is the root directory of the agent as it would start, also by a file of settings.
func (u *upgrading) rootOfInstalled() (string, error) {
	args, _, err := (&install.Installation{Root: "/", Layout: install.Local()}).Installed()
	if err != nil {
		return "", err
	}
	c, err := agentConfig(u.runDir, args)
	return c.RootDir, err
}

// watching says afterwards whether containers are others than before.
func (u *upgrading) watching(ctx context.Context, n *upgradedNode, do func() error) error {
	before, aerr := containersOf(ctx, n)
	err := do()
	if aerr != nil || len(before) == 0 {
		return err
	}
	now, aerr := containersOf(ctx, n)
	if aerr != nil {
		fmt.Fprintf(u.out, "which of %d containers run now is not known: %v\n", len(before), aerr)
		return err
	}
	maps.DeleteFunc(before, func(id, _ string) bool { return now[id] != "" })
	for _, name := range before {
		fmt.Fprintf(u.out, "container %s does not run any more\n", name)
	}
	return err
}

// containersOf are the containers that run, by their IDs.
func containersOf(ctx context.Context, n *upgradedNode) (map[string]string, error) {
	if !n.API {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, helperPatience)
	defer cancel()
	pods, err := client.New(n.RunDir).Pods(ctx, "")
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for i := range pods {
		for _, s := range pods[i].Status.ContainerStatuses {
			if s.State.Running != nil {
				out[s.ContainerID] = pods[i].Namespace + "/" + pods[i].Name + " " + s.Name
			}
		}
	}
	return out, nil
}
