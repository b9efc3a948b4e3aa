package system

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
)

// lifeCases are about probes, hooks, and the order in which containers begin and end.
var lifeCases = append(probeCases(), []fieldCase{
	{
		name: "probe-header", fields: "containers.readinessProbe.httpGet.httpHeaders.name " +
			"containers.readinessProbe.httpGet.httpHeaders.value containers.readinessProbe.httpGet.host",
		spec: runs("readinessProbe: {httpGet: {host: 127.0.0.1, port: $HTTP, path: /header, httpHeaders: [{name: X-Berth, " +
			"value: '1'}, {name: Host, value: own.example}]}}\n"),
		check: nothing,
	},
	{
		name: "probe-redirect", fields: "containers.readinessProbe.httpGet.path",
		spec: runs("readinessProbe: {httpGet: {host: 127.0.0.1, port: $HTTP, path: /redirect}}\n"), check: nothing,
	},
	{
		name: "probe-named-port", fields: "containers.readinessProbe.httpGet.port containers.ports.name",
		spec: strings.Replace(serves("    ports: [{name: web, containerPort: 8080}]\n"), "{tcpSocket: {port: 8080}}",
			"{httpGet: {port: web, path: /x}}", 1),
		check: nothing,
	},
	{
		name: "probe-twice", fields: "containers.readinessProbe.successThreshold containers.readinessProbe.periodSeconds " +
			"containers.readinessProbe.timeoutSeconds",
		spec: emptyVol + runs(mountVol+"readinessProbe: {exec: {command: [sh, -c, 'echo x >> /v/asked']}, timeoutSeconds: 30, "+
			"successThreshold: 3, periodSeconds: 1, timeoutSeconds: 10}\n"),
		check: func(t *testing.T, n *Node, _ *corev1.Pod) {
			if got, _ := strconv.Atoi(strings.TrimSpace(n.sh("probe-twice", "wc -l < /v/asked"))); got < 3 {
				t.Errorf("ready after %d successes, want 3", got)
			}
		},
	},
	{
		name: "probe-delay", fields: "containers.readinessProbe.initialDelaySeconds",
		spec: runs("readinessProbe: {exec: {command: ['true']}, initialDelaySeconds: 2, timeoutSeconds: 30}\n"),
		check: func(t *testing.T, _ *Node, p *corev1.Pod) {
			for _, c := range p.Status.Conditions {
				if began := containerState(p, "main").State.Running.StartedAt; c.Type == corev1.PodReady &&
					c.LastTransitionTime.Sub(began.Time).Seconds() < 1 {
					t.Errorf("ready at %s, though it began at %s", c.LastTransitionTime, began)
				}
			}
		},
	},
	{
		name: "probe-grace", fields: "containers.livenessProbe.terminationGracePeriodSeconds " +
			"containers.livenessProbe.failureThreshold",
		// At first it ignores SIGTERM, and the pod's own grace would be an hour. Later on it ends by itself: a process
		// 1 that is told to end before it has asked for the signal does not get it.
		grace: 3600,
		spec: emptyVol + "\n  containers: [{name: main, image: " + image +
			", command: [sh, -c, 'test -e /v/again && exec sleep 3; touch /v/again; trap \"\" TERM; while :; do sleep 1; " +
			"done'], " +
			"volumeMounts: [{name: v, mountPath: /v}], livenessProbe: {exec: {command: ['false']}, periodSeconds: 1, " +
			"failureThreshold: 1, terminationGracePeriodSeconds: 1}}]",
		until: restarts,
	},
	{
		name: "startup-holds-liveness", fields: "containers.startupProbe.failureThreshold " +
			"containers.startupProbe.periodSeconds",
		spec: runs("startupProbe: {exec: {command: [test, -e, /up]}, timeoutSeconds: 30, periodSeconds: 1, failureThreshold: " +
			"1000}\nlivenessProbe: {exec: {command: [test, -e, /up]}, periodSeconds: 1, timeoutSeconds: 60, failureThreshold: 1}\n"),
		until: func(p *corev1.Pod) bool {
			s := containerState(p, "main")
			return s.State.Running != nil && s.Started != nil && !*s.Started
		},
		check: func(t *testing.T, n *Node, _ *corev1.Pod) {
			n.sh("startup-holds-liveness", "touch /up")
			if p := n.waitReady("startup-holds-liveness"); containerState(p, "main").RestartCount != 0 {
				t.Error("it was restarted while it started")
			}
		},
	},
	{
		name: "post-start", fields: "containers.lifecycle.postStart.exec.command",
		spec:  emptyVol + runs(mountVol+"lifecycle: {postStart: {exec: {command: [touch, /v/hooked]}}}\n"),
		check: func(_ *testing.T, n *Node, _ *corev1.Pod) { n.sh("post-start", "test -e /v/hooked") },
	},
	{
		name: "post-start-fails", fields: "containers.lifecycle.postStart.exec.command",
		spec: runs("lifecycle: {postStart: {exec: {command: ['false']}}}\n"), until: restarts,
	},
	{
		name: "post-start-http", fields: fieldsBelow("containers.lifecycle.postStart.httpGet",
			"path port host scheme httpHeaders.name httpHeaders.value"),
		spec: runs("lifecycle: {postStart: {httpGet: {host: 127.0.0.1, port: $HTTPS, scheme: HTTPS, path: " +
			"/hook/post-start-http, httpHeaders: [{name: X-Berth, value: '1'}]}}}\n"),
		check: hooked,
	},
	{
		name: "post-start-http2", fields: "containers.lifecycle.postStart.httpGet.protocol",
		spec: runs("lifecycle: {postStart: {httpGet: {host: 127.0.0.1, port: $HTTP, protocol: HTTP2, path: " +
			"/hook2/post-start-http2}}}\n"),
		check: hooked,
	},
	{
		name: "post-start-sleep", fields: "containers.lifecycle.postStart.sleep.seconds",
		spec: runs("lifecycle: {postStart: {sleep: {seconds: 1}}}\n"), check: nothing,
	},
	{
		name: "pre-stop", fields: "containers.lifecycle.preStop.exec.command terminationGracePeriodSeconds",
		spec: emptyVol + "\n  restartPolicy: OnFailure\n  containers: [{name: main, image: " + image +
			", command: [sh, -c, 'test -e /v/stopped && exec cat /v/stopped; trap \"exit 1\" TERM; while :; do sleep 1 & " +
			"wait; done'], volumeMounts: [{name: v, mountPath: /v}], " +
			"livenessProbe: {exec: {command: ['false']}, periodSeconds: 1, failureThreshold: 1}, lifecycle: {preStop: {exec: " +
			"{command: [sh, -c, 'echo hooked > /v/new; mv /v/new /v/stopped']}}}}]",
		want: []string{"hooked"},
	},
	{
		name: "pre-stop-http", fields: fieldsBelow("containers.lifecycle.preStop.httpGet",
			"path port host scheme httpHeaders.name httpHeaders.value"),
		spec: runs("livenessProbe: {exec: {command: ['false']}, periodSeconds: 1, failureThreshold: 1}\nlifecycle: " +
			"{preStop: {httpGet: {host: 127.0.0.1, port: $HTTPS, scheme: HTTPS, path: /hook/pre-stop-http, httpHeaders: " +
			"[{name: X-Berth, value: '1'}]}}}\n"),
		until: restarts, check: hooked,
	},
	{
		name: "pre-stop-http2", fields: "containers.lifecycle.preStop.httpGet.protocol",
		spec: runs("livenessProbe: {exec: {command: ['false']}, periodSeconds: 1, failureThreshold: 1}\nlifecycle: " +
			"{preStop: {httpGet: {host: 127.0.0.1, port: $HTTP, protocol: HTTP2, path: /hook2/pre-stop-http2}}}\n"),
		until: restarts, check: hooked,
	},
	{
		name: "pre-stop-sleep", fields: "containers.lifecycle.preStop.sleep.seconds",
		spec: runs("livenessProbe: {exec: {command: ['false']}, periodSeconds: 1, failureThreshold: 1}\nlifecycle: " +
			"{preStop: {sleep: {seconds: 1}}}\n"),
		until: restarts,
	},
	{
		name: "restart-always", fields: "restartPolicy",
		spec: "\n  restartPolicy: Always\n  containers: [{name: main, image: " + image +
			", command: ['true']}]", until: restarts,
	},
	{
		name: "restart-on-failure", fields: "restartPolicy",
		spec: "\n  restartPolicy: OnFailure" + emptyVol + "\n  containers: [{name: main, image: " + image +
			", command: [sh, -c, 'test -e /v/x && exit 0; touch /v/x; exit 1'], volumeMounts: [{name: v, mountPath: /v}]}]",
		ends: func(t *testing.T, _ *Node, p *corev1.Pod) {
			if p.Status.Phase != corev1.PodSucceeded || containerState(p, "main").RestartCount != 1 {
				t.Errorf("phase %s, %+v", p.Status.Phase, containerState(p, "main"))
			}
		},
	},
	{
		name: "init-order-three", fields: "initContainers",
		spec: emptyVol + "\n  initContainers:\n" + initWriter("one") + initWriter("two") + initWriter("three") +
			strings.TrimPrefix(prints("tr '\\n' ' ' < /v/log", mountVol), "\n"),
		want: []string{"one two three"},
	},
	{
		name: "init-fails", fields: "initContainers restartPolicy",
		spec: "\n  initContainers: [{name: i, image: " + image + ", command: [sh, -c, 'exit 4']}]" + prints("echo never", ""),
		ends: func(t *testing.T, _ *Node, p *corev1.Pod) {
			if s := terminated(p, "i"); p.Status.Phase != corev1.PodFailed || s == nil || s.ExitCode != 4 ||
				containerState(p, "main").State.Waiting == nil {
				t.Errorf("phase %s, init %+v", p.Status.Phase, s)
			}
		},
	},
	{
		name: "init-resources", fields: "initContainers",
		spec: "\n  initContainers: [{name: i, image: " + image +
			", command: ['true'], resources: {requests: {cpu: 300m}, limits: {memory: 128Mi}}}]" +
			runs("resources: {requests: {cpu: 100m}, limits: {memory: 64Mi}}\n"),
		check: func(t *testing.T, n *Node, p *corev1.Pod) {
			group := n.podGroup(p)
			requireOneOf(t, group, "memory", map[string]string{"memory.limit_in_bytes": "134217728", "memory.max": "134217728"})
			requireOneOf(t, group, "cpu", map[string]string{"cpu.shares": "307", "cpu.weight": "*"})
		},
	},
	{
		name: "sidecar-first", fields: "initContainers containers.restartPolicy",
		spec: emptyVol + "\n  initContainers:\n  - {name: side, image: " + image +
			", restartPolicy: Always, command: [sh, -c, 'echo side >> /v/log; sleep 1000'], " +
			"startupProbe: {exec: {command: [test, -e, /v/log]}, timeoutSeconds: 30, periodSeconds: 1, failureThreshold: 1000}, volumeMounts: " +
			"[{name: v, mountPath: /v}]}" +
			prints("cat /v/log", mountVol),
		want: []string{"side"},
	},
	{
		name: "sidecar-restarts", fields: "containers.restartPolicy",
		spec: "\n  initContainers: [{name: side, image: " + image +
			", restartPolicy: Always, command: [sh, -c, 'sleep 0.2; exit 1']}]" + runs(""),
		until: func(p *corev1.Pod) bool {
			return containerState(p, "side").RestartCount > 0 && containerState(p, "main").RestartCount == 0
		},
	},
	{
		name: "critical", fields: "priorityClassName priority",
		spec: "\n  priorityClassName: system-node-critical" + runs(""),
		check: func(t *testing.T, _ *Node, p *corev1.Pod) {
			if p.Spec.Priority == nil || *p.Spec.Priority != 2_000_001_000 {
				t.Errorf("priority: %v", p.Spec.Priority)
			}
		},
	},
	{
		name: "tolerations", fields: fieldsBelow("tolerations", "key operator value effect tolerationSeconds"),
		// Nothing taints the node, and a static pod would stay on one that was.
		spec: "\n  tolerations: [{key: a, operator: Equal, value: b, effect: NoExecute, tolerationSeconds: 5}]" + runs(""),
		check: func(t *testing.T, _ *Node, p *corev1.Pod) {
			if len(p.Spec.Tolerations) != 2 || p.Spec.Tolerations[1].Operator != corev1.TolerationOpExists {
				t.Errorf("tolerations: %+v", p.Spec.Tolerations)
			}
		},
	},
	{
		name: "service-account", fields: "automountServiceAccountToken",
		spec: "\n  automountServiceAccountToken: false" +
			prints("test -e /var/run/secrets && echo token; echo done", ""), want: []string{"done"},
	},
	{
		name: "runtime-class", fields: "runtimeClassName",
		spec:  "\n  runtimeClassName: none" + runs(""),
		until: func(p *corev1.Pod) bool { return p != nil && p.Status.Phase == corev1.PodPending },
		check: func(t *testing.T, n *Node, p *corev1.Pod) {
			n.eventually("its event", func() error {
				if out := n.must("events", p.Name); !strings.Contains(out, "none") {
					return fmt.Errorf("events:\n%s", out)
				}
				return nil
			})
		},
	},
	{
		name: "ignored", fields: "",
		spec: "\n  schedulerName: mine\n  topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: " +
			"DoNotSchedule}]" + prints("echo runs", ""), want: []string{"runs"},
	},
	{
		name: "node-name", fields: "nodeName",
		spec: "\n  nodeName: node" + prints("echo runs", ""), want: []string{"runs"},
	},
}...)

// hookAsked are the pods whose hooks have asked the test's server.
var hookAsked sync.Map

func initWriter(name string) string {
	return "  - {name: " + name + ", image: " + image + ", command: [sh, -c, 'echo " + name +
		" >> /v/log'], volumeMounts: [{name: v, mountPath: /v}]}\n"
}

func nothing(*testing.T, *Node, *corev1.Pod) {}

// restarts says that the main container was restarted.
func restarts(p *corev1.Pod) bool { return containerState(p, "main").RestartCount > 0 }

// hooked wants the test's server to have been asked by a hook of the pod.
func hooked(t *testing.T, n *Node, p *corev1.Pod) {
	name := strings.TrimSuffix(p.Name, "-node")
	n.eventually("the hook to ask", func() error {
		if _, ok := hookAsked.Load(name); !ok {
			return fmt.Errorf("nobody has asked for %s", name)
		}
		return nil
	})
}

func fieldsBelow(path, names string) string {
	var out []string
	for name := range strings.FieldsSeq(names) {
		out = append(out, path+"."+name)
	}
	return strings.Join(out, " ")
}

// probeCases are each probe with each way of asking, once answered well and once badly.
func probeCases() []fieldCase {
	asks := []struct{ name, fields, good, bad string }{
		{"exec", "exec.command", "exec: {command: ['true']}", "exec: {command: ['false']}"},
		{
			"http", "httpGet.host httpGet.port httpGet.path", "httpGet: {host: 127.0.0.1, port: $HTTP, path: /ok}",
			"httpGet: {host: 127.0.0.1, port: $HTTP, path: /fail}",
		},
		{
			"https", "httpGet.scheme", "httpGet: {host: 127.0.0.1, port: $HTTPS, scheme: HTTPS, path: /ok}",
			"httpGet: {host: 127.0.0.1, port: $HTTP, scheme: HTTPS, path: /ok}",
		},
		{
			"header", "httpGet.httpHeaders.name httpGet.httpHeaders.value", "httpGet: {host: 127.0.0.1, port: $HTTP, path: " +
				"/header, httpHeaders: [{name: X-Berth, value: '1'}, {name: Host, value: own.example}]}",
			"httpGet: {host: 127.0.0.1, port: $HTTP, path: /header}",
		},
		{
			"http2", "httpGet.protocol", "httpGet: {host: 127.0.0.1, port: $HTTP, protocol: HTTP2, path: /http2}",
			"httpGet: {host: 127.0.0.1, port: $HTTP, path: /http2}",
		},
		{
			"tcp", "tcpSocket.host tcpSocket.port", "tcpSocket: {host: 127.0.0.1, port: $HTTP}",
			"tcpSocket: {host: 127.0.0.1, port: 1}",
		},
		{"grpc", "grpc.port grpc.service", "grpc: {port: $GRPC, service: up}", "grpc: {port: $GRPC, service: down}"},
		{"grpc-tls", "grpc.mode", "grpc: {port: $GRPCTLS, mode: TLS}", "grpc: {port: $GRPCTLS}"},
	}
	var out []fieldCase
	for _, kind := range []string{"startup", "liveness", "readiness"} {
		at := "containers." + kind + "Probe"
		settings := "periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 2, successThreshold: 1, initialDelaySeconds: 0"
		for _, a := range asks {
			good, bad := kind+"-"+a.name, kind+"-"+a.name+"-bad"
			fields := fieldsBelow(at, a.fields+" periodSeconds timeoutSeconds failureThreshold successThreshold "+
				"initialDelaySeconds")
			spec := func(ask string) string {
				host := ""
				if strings.HasPrefix(a.name, "grpc") {
					host = "\n  hostNetwork: true" // gRPC probes ask the pod's own address
				}
				grace := ""
				if kind != "readiness" {
					grace = ", terminationGracePeriodSeconds: 1"
					fields += " " + at + ".terminationGracePeriodSeconds"
				}
				return host + runs(kind+"Probe: {"+ask+", "+settings+grace+"}\n")
			}
			// What is to succeed has time to: two that are too late would be a restart.
			patient := strings.Replace(spec(a.good), "timeoutSeconds: 10", "timeoutSeconds: 60", 1)
			out = append(out, fieldCase{name: good, fields: fields, spec: patient, check: probed(0)})
			if kind == "readiness" {
				out = append(out, fieldCase{
					name: bad, fields: fields, spec: spec(a.bad),
					until: func(p *corev1.Pod) bool { return p != nil && p.Status.Phase == corev1.PodRunning }, check: unhealthy,
				})
				continue
			}
			out = append(out, fieldCase{name: bad, fields: fields, spec: spec(a.bad), until: restarts})
		}
	}
	return out
}

func probed(restarts int32) func(*testing.T, *Node, *corev1.Pod) {
	return func(t *testing.T, _ *Node, p *corev1.Pod) {
		if s := containerState(p, "main"); s.RestartCount != restarts || s.Started == nil || !*s.Started {
			t.Errorf("%+v", s)
		}
	}
}

// unhealthy wants a readiness probe to have failed, and the pod not to be ready.
func unhealthy(t *testing.T, n *Node, p *corev1.Pod) {
	n.eventually("the probe to fail", func() error {
		if out := n.must("events", p.Name); !hasLine(out, "Unhealthy", "Readiness probe failed") {
			return fmt.Errorf("events:\n%s", out)
		}
		return nil
	})
	if isReady(n.pod(p.Name)) {
		t.Error("the pod is ready")
	}
}

// startServers starts what probes and hooks of the cases ask, and returns a replacer of the names of their ports.
func startServers(t *testing.T) *strings.Replacer {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/fail", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	mux.Handle("/redirect", http.RedirectHandler("/ok", http.StatusFound))
	mux.HandleFunc("/header", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Berth") != "1" || r.Host != "own.example" {
			w.WriteHeader(http.StatusBadRequest)
		}
	})
	mux.HandleFunc("/http2", func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			w.WriteHeader(http.StatusBadRequest)
		}
	})
	mux.HandleFunc("/hook/{pod}", func(_ http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Berth") == "1" && r.TLS != nil {
			hookAsked.Store(r.PathValue("pod"), true)
		}
	})
	mux.HandleFunc("/hook2/{pod}", func(_ http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 2 {
			hookAsked.Store(r.PathValue("pod"), true)
		}
	})
	plain := httptest.NewUnstartedServer(mux)
	plain.Config.Protocols = new(http.Protocols)
	plain.Config.Protocols.SetHTTP1(true)
	plain.Config.Protocols.SetUnencryptedHTTP2(true)
	plain.Start()
	secure := httptest.NewTLSServer(mux)
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	port := func(a net.Addr) string { return strconv.Itoa(a.(*net.TCPAddr).Port) }
	return strings.NewReplacer(
		"$HTTPS", port(secure.Listener.Addr()), "$HTTP", port(plain.Listener.Addr()),
		"$GRPCTLS", port(startHealth(t, grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: secure.TLS.Certificates})))),
		"$GRPC", port(startHealth(t)),
	)
}

// startHealth starts a server of the gRPC health protocol on every address, since a pod of the host's network is asked
// at the node's.
func startHealth(t *testing.T, opts ...grpc.ServerOption) net.Addr {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	h := health.NewServer()
	h.SetServingStatus("up", grpc_health_v1.HealthCheckResponse_SERVING)
	h.SetServingStatus("down", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	s := grpc.NewServer(opts...)
	grpc_health_v1.RegisterHealthServer(s, h)
	go s.Serve(l)
	t.Cleanup(s.Stop)
	return l.Addr()
}
