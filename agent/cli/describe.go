package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-node/berth/agent/api/client"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/internal/commandline"
)

func (c *commands) describe() *cobra.Command {
	var t target
	var timing bool
	cmd := &cobra.Command{
		Use: "describe [pod] POD", Short: "Show what a pod is, what state it is in and what happened to it",
		Example: "  berth describe web\n  berth describe --timing web",
		Args:    func(cmd *cobra.Command, args []string) error { return cobra.ExactArgs(1)(cmd, withoutKind(args)) },
		ValidArgsFunction: func(cmd *cobra.Command, args []string, s string) ([]string, cobra.ShellCompDirective) {
			return c.onePod(cmd, withoutKind(args), s)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			args = withoutKind(args)
			if timing {
				return c.runTiming(cmd, t, args[0])
			}
			return c.runDescribe(cmd, t, args[0])
		},
	}
	t.addFlags(cmd)
	cmd.Flags().BoolVar(&timing, "timing", false, "show where the time of the pod's start went")
	return cmd
}

// withoutKind leaves out what kind of object is named, as kubectl wants to have it said. Here all are pods.
func withoutKind(args []string) []string {
	if len(args) > 0 && slices.Contains([]string{"pod", "pods", "po"}, args[0]) {
		return args[1:]
	}
	return args
}

func (c *commands) runDescribe(cmd *cobra.Command, t target, arg string) error {
	cl, ctx := c.client(), cmd.Context()
	problems, err := cl.Problems(ctx)
	if err != nil {
		return err
	}
	found, err := t.find(ctx, cl, arg)
	if err != nil {
		if key, bad := t.key(arg); bad == nil {
			if rs := refusedNamed(problems, key); len(rs) > 0 {
				return c.describeRefused(cmd, rs)
			}
		}
		return err
	}
	p, file, err := cl.Pod(ctx, keyOf(found))
	if err != nil {
		return err
	}
	events, err := eventsOf(ctx, cl, p)
	if err != nil {
		return err
	}
	d := &description{out: commandline.Visible(cmd.OutOrStdout()), now: time.Now()}
	d.pod(p, file)
	d.events(events)
	key := keyOf(p).String()
	for _, pr := range problems {
		if pr.Pod == key || slices.Contains(pr.Kept, key) || file != "" && pr.File == file && pr.Pod == "" {
			d.problem(pr)
		}
	}
	return d.err
}

// eventsOf are the events of a pod, and those of its claims.
func eventsOf(ctx context.Context, cl *client.Client, p *corev1.Pod) ([]corev1.Event, error) {
	claims := claimsOf(p)
	if len(claims) == 0 {
		return cl.Events(ctx, p.Namespace, p.UID)
	}
	all, err := cl.Events(ctx, p.Namespace, "")
	return concerning(p, claims, all), err
}

func claimsOf(p *corev1.Pod) map[string]bool {
	out := map[string]bool{}
	for i := range p.Spec.Volumes {
		switch v := &p.Spec.Volumes[i]; {
		case v.PersistentVolumeClaim != nil:
			out[v.PersistentVolumeClaim.ClaimName] = true
		case v.Ephemeral != nil:
			out[object.ClaimName(p, v.Name)] = true
		}
	}
	return out
}

// concerning are those of a namespace's events that are a pod's or its claims'.
func concerning(p *corev1.Pod, claims map[string]bool, all []corev1.Event) []corev1.Event {
	var out []corev1.Event
	for _, e := range all {
		of := &e.InvolvedObject
		if of.Kind == string(object.PersistentVolumeClaim) && of.Namespace == p.Namespace && claims[of.Name] {
			e.Message = "claim " + of.Name + ": " + e.Message
		} else if of.UID != p.UID {
			continue
		}
		out = append(out, e)
	}
	return out
}

// description prints "Key:  value" lines and keeps the first error of writing.
type description struct {
	out io.Writer
	now time.Time
	err error
}

const keyWidth = 18

func (d *description) printf(format string, a ...any) {
	if _, err := fmt.Fprintf(d.out, format, a...); err != nil && d.err == nil {
		d.err = fmt.Errorf("print: %w", err)
	}
}

func (d *description) line(indent, key, format string, a ...any) {
	// A value of several lines stays in its column: it could be taken for more keys.
	value := strings.ReplaceAll(fmt.Sprintf(format, a...), "\n", "\n"+strings.Repeat(" ", keyWidth+1))
	d.printf("%s%-*s %s\n", indent, max(0, keyWidth-len(indent)), key+":", value)
}

// list prints values below each other, the first beside the key.
func (d *description) list(indent, key string, values []string) {
	if len(values) == 0 {
		values = []string{"<none>"}
	}
	for i, v := range values {
		if i == 0 {
			d.line(indent, key, "%s", v)
		} else {
			d.printf("%s%-*s %s\n", indent, max(0, keyWidth-len(indent)), "", oneLine(v))
		}
	}
}

func pairs(m map[string]string, sep string) []string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, k+sep+m[k])
	}
	return out
}

func (d *description) pod(p *corev1.Pod, file string) {
	d.line("", "Name", "%s", p.Name)
	d.line("", "Namespace", "%s", p.Namespace)
	if file != "" {
		d.line("", "Manifest", "%s", file)
	}
	if p.Spec.Priority != nil {
		d.line("", "Priority", "%d", *p.Spec.Priority)
	}
	d.line("", "Node", "%s", strings.TrimSuffix(p.Spec.NodeName+"/"+p.Status.HostIP, "/"))
	if p.Status.StartTime != nil {
		d.line("", "Start Time", "%s", p.Status.StartTime.Format(time.RFC1123Z))
	}
	d.list("", "Labels", pairs(p.Labels, "="))
	d.list("", "Annotations", pairs(p.Annotations, ": "))
	if p.DeletionTimestamp != nil {
		d.line("", "Status", "Terminating (for %s)", age(*p.DeletionTimestamp, d.now))
		d.line("", "Grace Period", "%ds", ptr.Deref(p.DeletionGracePeriodSeconds, 0))
	} else {
		d.line("", "Status", "%s", p.Status.Phase)
	}
	if p.Status.Reason != "" {
		d.line("", "Reason", "%s", p.Status.Reason)
	}
	if p.Status.Message != "" {
		d.line("", "Message", "%s", p.Status.Message)
	}
	var ips []string
	for _, ip := range p.Status.PodIPs {
		ips = append(ips, ip.IP)
	}
	if len(ips) == 0 && p.Status.PodIP != "" {
		ips = []string{p.Status.PodIP}
	}
	d.list("", "IPs", ips)
	d.line("", "UID", "%s", p.UID)
	d.containers("Init Containers", p.Spec.InitContainers, p.Status.InitContainerStatuses)
	d.containers("Containers", p.Spec.Containers, p.Status.ContainerStatuses)
	added := make([]corev1.Container, 0, len(p.Spec.EphemeralContainers))
	for _, e := range p.Spec.EphemeralContainers {
		added = append(added, corev1.Container(e.EphemeralContainerCommon))
	}
	d.containers("Ephemeral Containers", added, p.Status.EphemeralContainerStatuses)
	if len(p.Status.Conditions) > 0 {
		d.printf("Conditions:\n  %-27s %s\n", "Type", "Status")
		for _, c := range p.Status.Conditions {
			text := string(c.Status)
			if c.Status != corev1.ConditionTrue && c.Message != "" {
				text += "  (" + c.Message + ")"
			}
			d.printf("  %-27s %s\n", c.Type, text)
		}
	}
	d.volumes(p.Spec.Volumes)
	d.line("", "QoS Class", "%s", cmp.Or(string(p.Status.QOSClass), "<none>"))
}

func (d *description) containers(title string, specs []corev1.Container, statuses []corev1.ContainerStatus) {
	if len(specs) == 0 {
		return
	}
	d.printf("%s:\n", title)
	for i := range specs {
		c := &specs[i]
		var s corev1.ContainerStatus
		if j := slices.IndexFunc(statuses, func(s corev1.ContainerStatus) bool { return s.Name == c.Name }); j >= 0 {
			s = statuses[j]
		}
		d.printf("  %s:\n", c.Name)
		d.container(c, &s)
	}
}

func (d *description) container(c *corev1.Container, s *corev1.ContainerStatus) {
	const in = "    "
	d.line(in, "Container ID", "%s", s.ContainerID)
	d.line(in, "Image", "%s", c.Image)
	d.line(in, "Image ID", "%s", s.ImageID)
	if ports := portsOf(c); len(ports) > 0 {
		d.list(in, "Ports", ports)
	}
	if len(c.Command) > 0 {
		d.list(in, "Command", c.Command)
	}
	if len(c.Args) > 0 {
		d.list(in, "Args", c.Args)
	}
	d.state(in, "State", s.State)
	if s.LastTerminationState.Terminated != nil {
		d.state(in, "Last State", s.LastTerminationState)
	}
	d.line(in, "Ready", "%s", yesNo(s.Ready))
	d.line(in, "Restart Count", "%d", s.RestartCount)
	d.list(in, "Limits", resources(c.Resources.Limits))
	d.list(in, "Requests", resources(c.Resources.Requests))
	d.probes(in, c)
	var env []string
	for _, e := range c.Env {
		switch {
		case e.ValueFrom == nil:
			env = append(env, e.Name+"="+e.Value)
		case e.ValueFrom.FieldRef != nil:
			env = append(env, fmt.Sprintf("%s  (field %s)", e.Name, e.ValueFrom.FieldRef.FieldPath))
		case e.ValueFrom.ResourceFieldRef != nil:
			env = append(env, fmt.Sprintf("%s  (resource %s)", e.Name, e.ValueFrom.ResourceFieldRef.Resource))
		case e.ValueFrom.FileKeyRef != nil:
			r := e.ValueFrom.FileKeyRef
			env = append(env, fmt.Sprintf("%s  (key %s of file %s in volume %s)", e.Name, r.Key, r.Path, r.VolumeName))
		default:
			env = append(env, e.Name+"  (from another object)")
		}
	}
	d.list(in, "Environment", env)
	var mounts []string
	for _, m := range c.VolumeMounts {
		text := fmt.Sprintf("%s from %s (%s)", m.MountPath, m.Name, map[bool]string{true: "ro", false: "rw"}[m.ReadOnly])
		if m.SubPath != "" {
			text += ", path " + m.SubPath
		}
		mounts = append(mounts, text)
	}
	d.list(in, "Mounts", mounts)
}

func portsOf(c *corev1.Container) []string {
	var ports []string
	for _, p := range c.Ports {
		text := fmt.Sprintf("%d/%s", p.ContainerPort, cmp.Or(p.Protocol, corev1.ProtocolTCP))
		if p.Name != "" {
			text += " (" + p.Name + ")"
		}
		if p.HostPort != 0 {
			text += fmt.Sprintf(", host port %d", p.HostPort)
		}
		ports = append(ports, text)
	}
	return ports
}

func (d *description) state(indent, key string, s corev1.ContainerState) {
	in := indent + "  "
	switch {
	case s.Running != nil:
		d.line(indent, key, "Running")
		d.line(in, "Started", "%s", s.Running.StartedAt.Format(time.RFC1123Z))
	case s.Terminated != nil:
		t := s.Terminated
		d.line(indent, key, "Terminated")
		if t.Reason != "" {
			d.line(in, "Reason", "%s", t.Reason)
		}
		if t.Message != "" {
			d.line(in, "Message", "%s", strings.TrimRight(t.Message, "\n"))
		}
		d.line(in, "Exit Code", "%d", t.ExitCode)
		if t.Signal != 0 {
			d.line(in, "Signal", "%d", t.Signal)
		}
		d.line(in, "Started", "%s", t.StartedAt.Format(time.RFC1123Z))
		d.line(in, "Finished", "%s", t.FinishedAt.Format(time.RFC1123Z))
	default:
		d.line(indent, key, "Waiting")
		if s.Waiting != nil && s.Waiting.Reason != "" {
			d.line(in, "Reason", "%s", s.Waiting.Reason)
		}
		if s.Waiting != nil && s.Waiting.Message != "" {
			d.line(in, "Message", "%s", s.Waiting.Message)
		}
	}
}

func (d *description) volumes(vols []corev1.Volume) {
	if len(vols) == 0 {
		return
	}
	d.printf("Volumes:\n")
	for _, v := range vols {
		text := "<another kind>"
		switch {
		case v.EmptyDir != nil:
			text = "EmptyDir"
			if v.EmptyDir.Medium != "" {
				text += ", medium " + string(v.EmptyDir.Medium)
			}
			if v.EmptyDir.SizeLimit != nil {
				text += ", size limit " + v.EmptyDir.SizeLimit.String()
			}
		case v.HostPath != nil:
			text = "HostPath " + v.HostPath.Path
			if t := ptr.Deref(v.HostPath.Type, ""); t != "" {
				text += " (" + string(t) + ")"
			}
		}
		d.line("  ", v.Name, "%s", text)
	}
}

func (d *description) events(events []corev1.Event) {
	if len(events) == 0 {
		d.line("", "Events", "<none>")
		return
	}
	d.printf("Events:\n")
	w := tabwriter.NewWriter(d.out, 0, 8, 2, ' ', 0)
	fmt.Fprintf(w, "  Type\tReason\tAge\tFrom\tMessage\n  ----\t------\t----\t----\t-------\n")
	for i := range events {
		e := &events[i]
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%s\n", oneLine(e.Type), oneLine(e.Reason), seen(e, d.now), oneLine(from(e)),
			oneLine(strings.TrimSpace(e.Message)))
	}
	if err := w.Flush(); err != nil && d.err == nil {
		d.err = fmt.Errorf("print: %w", err)
	}
}

func resources(l corev1.ResourceList) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(l)) {
		q := l[name]
		out = append(out, fmt.Sprintf("%s: %s", name, q.String()))
	}
	return out
}

func yesNo(b bool) string {
	if b {
		return "True"
	}
	return "False"
}
