package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-node/berth/control/apiserver"
	"github.com/berth-node/berth/control/etcd"
	"github.com/berth-node/berth/control/pki"
	"github.com/berth-node/berth/control/rotation"
	"github.com/berth-node/berth/internal/commandline"
)

// rotationPatience is how long all members may take to follow a step of a rotation.
const rotationPatience = time.Minute

// rotateFlags are the flags of certs rotate-ca.
type rotateFlags struct {
	names                 []string
	begin, finish, status bool
	force                 bool
	patience              time.Duration
	form                  commandline.Output
}

func newRotate(d *data) *cobra.Command {
	f := &rotateFlags{}
	c := &cobra.Command{
		Use: "rotate-ca --begin|--finish|--status", Short: "Replace the authorities and the key of tokens on all members, with both trusted for a while",
		Args: cobra.NoArgs,
		Long: `Replace the authorities, and the key of tokens, on all members of a control plane that runs.

--begin makes others. All members trust them, and then sign with them; what the ones before have signed is good as it
was, and who trusts only those still trusts the servers. Nothing is started again. Run again it goes on where it was.

Then give nodes and users what the new ones have signed (berth-control kubeconfig), and start what has read an authority
when it was started again, as Kubernetes' controller manager. --status tells who still came with what the ones before
have signed.

--finish has those trusted no more. It is refused while anybody has come with what they have signed within the last
hour, or a member has not followed, unless it is forced.`,
		RunE: func(c *cobra.Command, _ []string) error { return rotate(c.Context(), *d, f, c.OutOrStdout()) },
	}
	p := c.Flags()
	p.StringSliceVar(&f.names, "authority", pki.Rotated(), "which of "+strings.Join(pki.Rotated(), ", ")+" (the key of tokens)")
	p.BoolVar(&f.begin, "begin", false, "have new ones sign, and both be trusted")
	p.BoolVar(&f.finish, "finish", false, "have the ones before be trusted no more")
	p.BoolVar(&f.status, "status", false, "show how far rotations are")
	p.BoolVar(&f.force, "force", false, "finish, although some need the ones before: they are refused from then on")
	p.DurationVar(&f.patience, "timeout", rotationPatience, "how long all members may take to follow each step")
	f.form.AddFlag(c)
	c.MarkFlagsMutuallyExclusive("begin", "finish", "status")
	c.MarkFlagsOneRequired("begin", "finish", "status")
	return c
}

func rotate(ctx context.Context, d data, f *rotateFlags, out io.Writer) error {
	for _, name := range f.names {
		if !slices.Contains(pki.Rotated(), name) {
			return commandline.Usagef("read --authority %q: it is one of %s", name, strings.Join(pki.Rotated(), ", "))
		}
	}
	if f.force && !f.finish {
		return commandline.Usagef("--force is for --finish")
	}
	if f.form.Machines() && !f.status {
		return commandline.Usagef("-o is for --status")
	}
	at, err := readServing(d)
	if err != nil {
		return err
	}
	client, err := connectStore(ctx, d, at)
	if err != nil {
		return err
	}
	defer client.Close()
	l := &rotation.Leader{
		Etcd: client, Store: pki.At(d.pki(), pki.Options{Now: time.Now, Log: slog.New(slog.DiscardHandler)}), Patience: f.patience,
		Members: func(ctx context.Context) ([]string, error) { return memberNames(ctx, client, at) },
	}
	if f.status {
		return rotationStatus(ctx, l, &f.form, out)
	}
	for _, name := range f.names {
		if f.begin {
			if err := l.Begin(ctx, name); err != nil {
				return err
			}
			fmt.Fprintf(out, "%s: the new one signs, and both are trusted\n", name)
			continue
		}
		if err := l.Finish(ctx, name, f.force); err != nil {
			return err
		}
		fmt.Fprintf(out, "%s: the one before is trusted no more\n", name)
		if m, err := d.readMember(); name == pki.EtcdAuthority && err == nil && m.Address != "" {
			fmt.Fprintln(out, "Members of etcd have read their authorities at their start: to have them forget the one before, start each again, one by one.")
		}
	}
	return nil
}

// connectStore connects to where the objects are, of a server that runs.
func connectStore(ctx context.Context, d data, at serving) (*clientv3.Client, error) {
	if at.Etcd != nil {
		return etcd.Connect(*at.Etcd, slog.New(slog.DiscardHandler))
	}
	return connectMember(ctx, d)
}

// connectMember connects to the etcd of a server that runs on the data directory. Where none does it says so at once.
func connectMember(ctx context.Context, d data) (*clientv3.Client, error) {
	socket := etcd.SocketPath(d.run())
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("connect to etcd: %w; berth-control serve has to run on %s, with an etcd of its own", err, d.dir)
	}
	conn.Close()
	client, err := etcd.Connect(etcd.Servers{Endpoints: []string{etcd.Endpoint(socket)}}, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	if err := answers(ctx, client, answerPatience); err != nil {
		client.Close()
		return nil, fmt.Errorf("%w (is berth-control serve on %s stopped or stuck?)", err, d.dir)
	}
	return client, nil
}

// answerPatience is how long the etcd of a server may take to say that it is there.
const answerPatience = 10 * time.Second

// answers asks for what a member knows by itself, whether it has others or not. The kernel takes connections for a
// process that is stopped, too, and what takes minutes would be waited for as long.
func answers(ctx context.Context, client *clientv3.Client, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := client.Status(ctx, endpoint(client))
	if errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded {
		err = fmt.Errorf("it takes connections, but does not answer within %s", patience)
	}
	if err != nil {
		return fmt.Errorf("ask etcd: %w", err)
	}
	return nil
}

// ownEtcd is the etcd of the user's own, as other commands find it.
func (f *serveFlags) ownEtcd() *etcd.Servers {
	if len(f.etcd.Endpoints) == 0 {
		return nil
	}
	s := f.etcd
	for _, path := range []*string{&s.CAFile, &s.CertFile, &s.KeyFile} {
		if *path == "" {
			continue
		}
		if abs, err := filepath.Abs(*path); err == nil {
			*path = abs
		}
	}
	return &s
}

// memberNames are all members of the control plane: those of etcd, whether they run or not, or the servers that live on
// an etcd of the user's own.
func memberNames(ctx context.Context, client *clientv3.Client, at serving) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	if at.Etcd != nil {
		return apiserver.Living(ctx, client)
	}
	list, err := agreedMembers(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("list members of etcd: %w", err)
	}
	var all []string
	for _, m := range list.Members {
		// One that has been added and has not begun yet has no name.
		all = append(all, cmp.Or(m.Name, strings.Join(m.PeerURLs, ",")))
	}
	return all, nil
}

// selfName is the name of this member among them.
func (f *serveFlags) selfName(o apiserver.Options, at serving) string {
	if at.Etcd != nil {
		return net.JoinHostPort(o.Advertise.String(), strconv.Itoa(at.Port))
	}
	return cmp.Or(f.member.Name, etcd.FirstName)
}

// newFollower has a server follow rotations.
func newFollower(d data, f *serveFlags, at serving, o apiserver.Options, server *apiserver.Server) *rotation.Follower {
	return &rotation.Follower{
		Etcd: o.Etcd, Store: o.PKI, Self: f.selfName(o, at), Uses: server.Uses(), Log: o.Log,
		Changed: func() error { return errors.Join(server.ReadTokenKeys(), writeAdmin(d, o.PKI, at)) },
	}
}

func rotationStatus(ctx context.Context, l *rotation.Leader, form *commandline.Output, out io.Writer) error {
	all, err := l.Progress(ctx)
	if err != nil {
		return err
	}
	shown := rotationsShown(all)
	return form.Print(out, shown, shown.table)
}
