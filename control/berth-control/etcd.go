package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/berth-node/berth/control/etcd"
	"github.com/berth-node/berth/internal/commandline"
)

// etcdTimeout bounds a command to etcd. Defragmenting and snapshots read the whole store.
const etcdTimeout = 5 * time.Minute

func newEtcd(d *data) *cobra.Command {
	c := &cobra.Command{Use: "etcd", Short: "The store of a server that runs, or restored for the next one"}
	with := func(do func(ctx context.Context, c *cobra.Command, client *clientv3.Client, args []string) error) func(*cobra.Command, []string) error {
		return func(c *cobra.Command, args []string) error {
			client, err := connectMember(c.Context(), *d)
			if err != nil {
				return err
			}
			defer client.Close()
			ctx, cancel := context.WithTimeout(c.Context(), etcdTimeout)
			defer cancel()
			return do(ctx, c, client, args)
		}
	}
	status := &cobra.Command{Use: "status", Short: "Show size, revision and alarms", Args: cobra.NoArgs, RunE: with(etcdStatus)}
	members := &cobra.Command{Use: "members", Short: "List the members", Args: cobra.NoArgs, RunE: with(etcdMembers)}
	for _, c := range []*cobra.Command{status, members} {
		new(commandline.Output).AddFlag(c)
	}
	c.AddCommand(
		status, members,
		&cobra.Command{
			Use: "remove ID", Short: "Take a member away that is gone for good; those that are left decide without it", Args: cobra.ExactArgs(1),
			RunE: with(etcdRemove),
		},
		&cobra.Command{
			Use: "defrag", Short: "Give back to the file system what deleted objects have left; nothing is written meanwhile", Args: cobra.NoArgs,
			RunE: with(etcdDefrag),
		},
		&cobra.Command{
			Use: "disarm", Short: "Have writes be taken again, once there is room on the disk that was full", Args: cobra.NoArgs,
			Long: `Have writes be taken again, once there is room on the disk that was full.

A member that has less than 128 MB left on the disk of its etcd raises the alarm NOSPACE (etcd status shows it): all
members then refuse to make or change objects. They can be read and deleted. Make room, by a larger disk or by what else
is on it, or in etcd with deletions and etcd defrag; then run this.`,
			RunE: with(func(ctx context.Context, c *cobra.Command, client *clientv3.Client, _ []string) error {
				return etcdDisarm(ctx, c, client, *d)
			}),
		},
		&cobra.Command{
			Use: "snapshot FILE", Short: "Write a copy of the store to a file, which is checked and there as a whole", Args: cobra.ExactArgs(1),
			RunE: with(func(ctx context.Context, _ *cobra.Command, client *clientv3.Client, args []string) error {
				return etcd.Snapshot(ctx, client, args[0])
			}),
		},
		newRestore(d),
	)
	return c
}

// electionPatience is how long members may take to have a leader, which they have within two seconds of most of them
// running.
const electionPatience = 5 * time.Second

var errNoLeader = errors.New("most members of etcd have to run, and do not: there is no leader")

// agreedMembers are those that the members agree on, for which etcd waits until there is a leader. Whatever else they
// have to agree on would be waited for as long as the command may take, with no word of the cause.
func agreedMembers(ctx context.Context, client *clientv3.Client) (*clientv3.MemberListResponse, error) {
	within, cancel := context.WithTimeout(ctx, electionPatience)
	defer cancel()
	all, err := client.MemberList(within)
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		err = errNoLeader
	}
	return all, err
}

func endpoint(client *clientv3.Client) string { return client.Endpoints()[0] }

func etcdStatus(ctx context.Context, c *cobra.Command, client *clientv3.Client, _ []string) error {
	form, err := commandline.OutputOf(c)
	if err != nil {
		return err
	}
	s, err := client.Status(ctx, endpoint(client))
	if err != nil {
		return fmt.Errorf("ask etcd: %w", err)
	}
	shown := storeShown(s)
	return form.Print(c.OutOrStdout(), shown, shown.table)
}

func etcdDisarm(ctx context.Context, c *cobra.Command, client *clientv3.Client, d data) error {
	if _, err := agreedMembers(ctx, client); err != nil {
		return fmt.Errorf("disarm: %w", err)
	}
	done, err := etcd.Disarm(ctx, client, d.etcd())
	for _, id := range done {
		fmt.Fprintf(c.OutOrStdout(), "member %x: writes are taken again\n", id)
	}
	if err == nil && len(done) == 0 {
		fmt.Fprintln(c.OutOrStdout(), "no member has raised the alarm")
	}
	return err
}

func etcdMembers(ctx context.Context, c *cobra.Command, client *clientv3.Client, _ []string) error {
	form, err := commandline.OutputOf(c)
	if err != nil {
		return err
	}
	all, err := agreedMembers(ctx, client)
	if errors.Is(err, errNoLeader) {
		// Who asks may have to know them just because most of them are gone.
		fmt.Fprintln(c.ErrOrStderr(), "warning: most members do not answer: these are those that this one knows of")
		all, err = client.MemberList(ctx, clientv3.WithSerializable())
	}
	if err != nil {
		return fmt.Errorf("list members of etcd: %w", err)
	}
	// Of members that are none of these nothing else tells.
	if s, err := client.Status(ctx, endpoint(client)); err == nil {
		for _, what := range etcd.Strange(s) {
			fmt.Fprintln(c.ErrOrStderr(), "warning: "+what)
		}
	}
	shown := membersShown(all)
	return form.Print(c.OutOrStdout(), shown, shown.table)
}

func etcdRemove(ctx context.Context, c *cobra.Command, client *clientv3.Client, args []string) error {
	id, err := strconv.ParseUint(args[0], 16, 64)
	if err != nil {
		return commandline.Usagef("read ID %q of a member: it is one that berth-control etcd members lists", args[0])
	}
	if _, err := agreedMembers(ctx, client); err != nil {
		return fmt.Errorf("remove member %x: %w; where they are gone for good, berth-control etcd restore makes one anew", id, err)
	}
	if err := etcd.Remove(ctx, client, id); err != nil {
		return err
	}
	fmt.Fprintf(c.OutOrStdout(), "member %x is removed\n", id)
	return nil
}

func etcdDefrag(ctx context.Context, _ *cobra.Command, client *clientv3.Client, _ []string) error {
	if _, err := client.Defragment(ctx, endpoint(client)); err != nil {
		return fmt.Errorf("defragment etcd: %w", err)
	}
	return nil
}
