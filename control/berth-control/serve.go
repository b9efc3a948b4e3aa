package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"strconv"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/berth-node/berth/control/apiserver"
	"github.com/berth-node/berth/control/etcd"
	"github.com/berth-node/berth/control/pki"
	"github.com/berth-node/berth/internal/atomicfile"
	"github.com/berth-node/berth/internal/commandline"
	"github.com/berth-node/berth/internal/garbage"
)

// serveFlags are the flags of serve.
type serveFlags struct {
	bind, advertise, serviceCIDR, issuer string
	port                                 int
	names                                []string
	etcd                                 etcd.Servers
	authentication, authorization        string
	encryption, kubeletCA, logLevel      string
	snapshots                            snapshotFlags
	member                               member
	watch                                watchFlags
	controllers                          controllerFlags
	scheduler                            schedulerFlags
	pods                                 podFlags
	nodes                                nodeFlags
	versions                             versionFlags
}

func newServe(d *data) *cobra.Command { return newServeOf(d, &serveFlags{}) }

func newServeOf(d *data, f *serveFlags) *cobra.Command {
	c := &cobra.Command{
		Use: "serve", Short: "Run the control plane until it is told to stop", Args: cobra.NoArgs,
		Long: `Run the control plane until it is told to stop.

An empty data directory becomes a new cluster: certificates and keys are made, and etcd begins with nothing in it. A
data directory that is there goes on where it stopped, whatever stopped it; where its objects or its authorities are
gone it says so, and makes no others. admin.kubeconfig in it is for the administrator. With --etcd-servers the objects
are in an etcd of your own, and the data directory has the certificates.

Snapshots of the objects are written by themselves; berth-control etcd restore makes the store anew from one. One that
cannot be written is told of in the log and tried again, and the server goes on. With --etcd-servers there are none.

With --peer-address other machines may become members of the control plane (berth-control token create --member prints
the command for them). Of three members any one may be lost. The address is kept, for the next start.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.check(c.Flags()); err != nil {
				return commandline.Usage(err)
			}
			if err := f.scheduler.check(); err != nil {
				return err
			}
			return serve(c.Context(), *d, f)
		},
	}
	f.add(c.Flags())
	return c
}

// add adds the flags.
func (f *serveFlags) add(p *pflag.FlagSet) {
	p.StringVar(&f.bind, "bind", "0.0.0.0", "address to listen on")
	p.IntVar(&f.port, "port", 6443, "port to listen on; 0: any that is free")
	p.StringVar(&f.advertise, "advertise-address", "", "address by which pods and nodes reach the API; the address of the default route, if empty")
	p.StringSliceVar(&f.names, "tls-san", nil, "further names and addresses that clients reach the API by")
	p.StringVar(&f.serviceCIDR, "service-cidr", "10.96.0.0/16", "range of the addresses of services; two of both families, with a comma between")
	p.StringVar(&f.issuer, "service-account-issuer", "https://kubernetes.default.svc", "URL that tokens of service accounts name as their issuer")
	p.StringSliceVar(&f.etcd.Endpoints, "etcd-servers", nil, "URLs of an etcd of your own; without them one runs in this process")
	p.StringVar(&f.etcd.CAFile, "etcd-cafile", "", "file of the authority of your own etcd's certificates")
	p.StringVar(&f.etcd.CertFile, "etcd-certfile", "", "file of the certificate for your own etcd")
	p.StringVar(&f.etcd.KeyFile, "etcd-keyfile", "", "file of the key for your own etcd")
	p.StringVar(&f.authentication, "authentication-config", "", "file with an AuthenticationConfiguration, as for OIDC")
	p.StringVar(&f.authorization, "authorization-config", "", "file with an AuthorizationConfiguration; Node and RBAC, if empty")
	p.StringVar(&f.encryption, "encryption-provider-config", "", "file with an EncryptionConfiguration; off: none; if empty, Secrets by a key of the data directory")
	p.StringVar(&f.kubeletCA, "kubelet-certificate-authority", "", "file of the authorities of kubelets' certificates; not verified, if empty")
	f.snapshots.add(p)
	f.member.bind(p, "address of this machine by which other members of the control plane reach it; as before, if empty")
	f.watch.add(p)
	f.controllers.add(p)
	f.scheduler.add(p)
	f.pods.add(p)
	f.nodes.add(p)
	f.versions.add(p)
	p.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
}

// check refuses flags that do not go together, or say what there is not.
func (f *serveFlags) check(given *pflag.FlagSet) error {
	if err := f.snapshots.check(given, len(f.etcd.Endpoints) > 0); err != nil {
		return err
	}
	if err := f.watch.check(given); err != nil {
		return err
	}
	if err := f.controllers.check(); err != nil {
		return err
	}
	if _, err := f.pods.ranges(); err != nil {
		return err
	}
	if err := f.nodes.rules.Check(); err != nil {
		return err
	}
	_, err := f.versions.served()
	return err
}

// serving is what other commands are told of a server that runs.
type serving struct {
	Port int `json:"port"`
	// Reach is the address by which others reach it: the one it listens on, or the advertised one if it listens on all.
	Reach string `json:"reach"`
	// Local is the address by which this machine does; empty: the loopback.
	Local string `json:"local,omitempty"`
	// Etcd is the user's own, if it has one.
	Etcd *etcd.Servers `json:"etcd,omitempty"`
}

func serve(ctx context.Context, d data, f *serveFlags) error {
	log, err := newLog(f.logLevel)
	if err != nil {
		return err
	}
	gc := newPace(ownMemory(), func() { giveBack(log) })
	garbage.Pace(gc.now)
	klog.SetLogger(logr.FromSlogHandler(newQuiet(log.With("component", "apiserver").Handler())))
	if err := d.become(); err != nil {
		return err
	}
	ranges, err := parseRanges(f.serviceCIDR)
	if err != nil {
		return err
	}
	advertise, err := advertised(f)
	if err != nil {
		return err
	}
	told, spans, err := f.watch.open(ctx, log)
	if err != nil {
		return err
	}
	versions, err := f.versions.served()
	if err != nil {
		return err
	}
	unlock, err := d.take()
	if err != nil {
		return err
	}
	defer unlock()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(f.bind, strconv.Itoa(f.port)))
	if err != nil {
		return fmt.Errorf("listen for clients: %w", err)
	}
	defer listener.Close()
	port := listener.Addr().(*net.TCPAddr).Port
	if f.member, err = d.known(f.member, log); err != nil {
		return err
	}
	secrets, err := encryption(d, f.encryption)
	if err != nil {
		return err
	}
	store, err := pki.Open(d.pki(), pki.Options{Hosts: hosts(f, advertise, ranges), Log: log})
	if err != nil {
		return err
	}
	at := serving{port, reach(f.bind, advertise), local(f.bind), f.ownEtcd()}
	if err := writeAdmin(d, store, at); err != nil {
		return err
	}
	log.Info("control plane starts", "version", version, "dir", d.dir, "address", listener.Addr())
	return run(ctx, d, f, at, gc, apiserver.Options{
		Listener: listener, Advertise: advertise, PKI: store, ServiceRanges: ranges, Issuer: f.issuer, KubeletCA: f.kubeletCA,
		AuthenticationConfiguration: f.authentication, AuthorizationConfiguration: f.authorization, EncryptionConfiguration: secrets,
		Serve: versions, Audit: told, Tracing: spans, Log: log,
	})
}

// run runs etcd, and the API server on it. They stop in reverse.
func run(ctx context.Context, d data, f *serveFlags, at serving, gc *pace, o apiserver.Options) error {
	manager, err := newNotifier(o.Log)
	if err != nil {
		return err
	}
	client, failed, stop, err := connect(ctx, d, f, o, o.Log)
	if err != nil {
		return err
	}
	defer stop()
	o.Etcd = client
	group, ctx := errgroup.WithContext(ctx)
	if schedule, on := f.snapshots.schedule(d, o.Log); on && len(f.etcd.Endpoints) == 0 {
		group.Go(func() error { schedule.Run(ctx, client); return nil })
	}
	server, err := apiserver.New(ctx, o)
	if err != nil {
		return err
	}
	controllers, err := newControllers(server, o, f)
	if err != nil {
		return err
	}
	planner, err := newScheduler(ctx, server, o, f)
	if err != nil {
		return err
	}
	group.Go(func() error { o.PKI.Run(ctx, func() error { return writeAdmin(d, o.PKI, at) }); return nil })
	follower := newFollower(d, f, at, o, server)
	group.Go(func() error { follower.Run(ctx); return nil })
	group.Go(func() error { return notify(ctx, manager, server, o.Log) })
	group.Go(func() error { settle(ctx, server.Began(), gc, o.Log); return nil })
	group.Go(func() error {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return fmt.Errorf("etcd has ended: %w", err)
		}
	})
	// The server stops when controllers have: one that ends says so to the others by the API.
	serving, stopServer := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	group.Go(func() error { giveUp(ctx, ended, client, o.Log); return nil })
	group.Go(func() error {
		defer stopServer()
		return runControllers(ctx, []runner{controllers, planner}, server, o.Log)
	})
	group.Go(func() error {
		defer close(ended)
		if err := server.Run(serving); err != nil {
			return err
		}
		if ctx.Err() == nil {
			return errors.New("run API server: it has ended by itself")
		}
		return nil
	})
	return group.Wait()
}

// connect connects to the user's own etcd, or starts one.
func connect(ctx context.Context, d data, f *serveFlags, o apiserver.Options, log *slog.Logger) (*clientv3.Client, <-chan error, func(), error) {
	servers, stopMember := f.etcd, func() {}
	shorten := func(*clientv3.Client) {}
	var failed <-chan error
	if len(servers.Endpoints) == 0 {
		member, err := etcd.Start(ctx, etcd.Options{
			Dir: d.etcd(), RunDir: d.run(), Name: f.member.Name, Peering: f.member.peering(o.PKI), Join: f.member.Join,
			Begun: d.begun(), Snapshots: f.snapshots.in(d), Log: log,
		})
		if err != nil {
			return nil, nil, nil, err
		}
		servers, failed, stopMember = etcd.Servers{Endpoints: []string{member.Endpoint()}}, member.Failed(), member.Stop
		if o.Tracing == nil { // calls have spans where they are sent
			shorten = member.Shorten
		}
	}
	client, err := etcd.Connect(servers, log, o.Tracing.DialOptions()...)
	if err != nil {
		stopMember()
		return nil, nil, nil, err
	}
	shorten(client)
	return client, failed, func() {
		if err := client.Close(); err != nil && !errors.Is(err, context.Canceled) {
			log.Warn("connection to etcd is not closed", "error", err)
		}
		stopMember()
	}, nil
}

// take makes the data directory, if there is none, and keeps everybody else away from it. The kernel gives it back when
// this process ends.
func (d data) take() (func(), error) {
	if err := d.become(); err != nil {
		return nil, err
	}
	if err := atomicfile.MkdirSynced(d.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make data directory: %w", err)
	}
	f, err := os.OpenFile(d.lock(), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock data directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock data directory: another berth-control has it (%s)", d.lock())
		}
		return nil, fmt.Errorf("lock data directory: %w", err)
	}
	// Who has it writes to it.
	if err := cmp.Or(etcd.Lighten(d.etcd()), d.clear()); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// clear removes the parts of files that who was killed has left, and that nobody may write over for long.
func (d data) clear() error {
	for _, path := range []string{d.member(), d.begun()} {
		if err := os.Remove(path + atomicfile.Part); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove what is left of %s: %w", path, err)
		}
	}
	return nil
}

// writeAdmin writes what the administrator and other commands need of this server: at its start, when certificates are
// renewed or rotated, and by a command that renews them.
func writeAdmin(d data, store *pki.Store, s serving) error {
	return store.Alone(func() error { return writeAdminOf(d, store, s) })
}

func writeAdminOf(d data, store *pki.Store, s serving) error {
	state, err := json.Marshal(s)
	if err == nil {
		err = atomicfile.Write(d.state(), state, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	config, err := kubeconfig(d, "https://"+net.JoinHostPort(cmp.Or(s.Local, "127.0.0.1"), strconv.Itoa(s.Port)), store.Path(pki.Admin))
	if err == nil {
		err = atomicfile.WriteSynced(d.kubeconfig(), config, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}
