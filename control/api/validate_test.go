package api

import (
	"slices"
	"strings"
	"testing"
)

// manifest is a valid pod with a change: lines of the pod's spec, or of its container when indented by four,
// or its whole metadata.
func manifest(change string) string {
	meta, spec, container := "metadata: {name: a, namespace: default}\n", "", ""
	var others string
	inContainer := false
	for l := range strings.SplitSeq(strings.Trim(change, "\n"), "\n") {
		switch {
		case strings.HasPrefix(l, "metadata:"):
			meta = l + "\n"
		case strings.HasPrefix(l, "containers:"):
			others = l + "\n"
		case strings.HasPrefix(l, "    ") && (inContainer || containerField(l)):
			inContainer = true
			container += l + "\n"
		case l != "":
			inContainer = false
			spec += "  " + l + "\n"
		}
	}
	if others != "" {
		return meta + "spec:\n" + spec + "  " + others
	}
	image := "    image: nginx:1\n"
	if strings.Contains("\n"+container, "\n    image:") {
		image = ""
	}
	return meta + "spec:\n" + spec + "  containers:\n  - name: main\n" + image + container
}

// containerField tells a field of the container from the inside of one of the pod's.
func containerField(line string) bool {
	name, _, ok := strings.Cut(line[4:], ":")
	return ok && slices.Contains([]string{
		"ports", "env", "envFrom", "resources", "securityContext", "volumeMounts", "volumeDevices", "lifecycle", "livenessProbe", "readinessProbe",
		"startupProbe", "imagePullPolicy", "terminationMessagePolicy", "restartPolicy", "restartPolicyRules", "resizePolicy",
	}, name)
}

func TestValidPods(t *testing.T) {
	for _, change := range validPods {
		pod := podOf(t, manifest(change))
		SetDefaults(pod)
		if errs := Validate(pod); len(errs) > 0 {
			t.Errorf("%v in\n%s", errs, manifest(change))
		}
	}
}

func TestInvalidPods(t *testing.T) {
	for _, c := range invalidPods {
		pod := podOf(t, manifest(c.change))
		SetDefaults(pod)
		var got []string
		for _, e := range Validate(pod) {
			got = append(got, e.Error())
		}
		for _, w := range c.want {
			if !slices.ContainsFunc(got, func(g string) bool { return strings.HasPrefix(g, w) }) {
				t.Errorf("no %q in\n  %s\nof\n%s", w, strings.Join(got, "\n  "), manifest(c.change))
			}
		}
		if len(got) != len(c.want) {
			t.Errorf("%d errors, want %d:\n  %s\nof\n%s", len(got), len(c.want), strings.Join(got, "\n  "), manifest(c.change))
		}
	}
}

var validPods = []string{
	``,
	`metadata: {name: a.b-c, generateName: a-, namespace: x, labels: {a.b/c: d}, annotations: {X/Y: "any thing"}}`,
	`
    ports: [{name: web, containerPort: 80, hostPort: 80}, {containerPort: 80, hostPort: 80, protocol: UDP}, {containerPort: 80, hostIP: 127.0.0.1, hostPort: 80}]`,
	`
initContainers:
- {name: i1, image: x, ports: [{containerPort: 1, hostPort: 9}]}
- {name: i2, image: x, ports: [{containerPort: 1, hostPort: 9}]}
- {name: side, image: x, restartPolicy: Always, startupProbe: {exec: {command: [x]}}, lifecycle: {preStop: {sleep: {seconds: 30}}}}`,
	`
volumes: [{name: v, emptyDir: {medium: HugePages-2Mi, sizeLimit: 0}}, {name: h, hostPath: {path: "/x"}}, {name: p, persistentVolumeClaim: {claimName: x}}]
    volumeMounts: [{name: v, mountPath: /a, subPath: x/..y}, {name: v, mountPath: /b, subPathExpr: $(X)}, {name: h, mountPath: /c, readOnly: true, recursiveReadOnly: Enabled}]
    volumeDevices: [{name: p, devicePath: /dev/x}]`,
	`
    env: [{name: "a b.c-d", value: x}, {name: A, valueFrom: {fieldRef: {fieldPath: "metadata.labels['a.b/c']"}}}, {name: A, valueFrom: {fieldRef: {fieldPath: status.podIPs}}}, {name: B, valueFrom: {resourceFieldRef: {resource: limits.hugepages-2Mi}}}, {name: C, valueFrom: {resourceFieldRef: {resource: requests.cpu, divisor: 1m}}}]
    envFrom: [{prefix: X_, configMapRef: {name: c}}, {secretRef: {name: s}}]`,
	`
    resources: {limits: {cpu: 1, memory: 1Gi, hugepages-2Mi: 4Mi, example.com/gpu: 2, ephemeral-storage: 1Gi}, requests: {cpu: 500m}}`,
	`
securityContext: {runAsUser: 0, fsGroup: 0, supplementalGroups: [1], sysctls: [{name: kernel.shm_rmid_forced, value: "1"}, {name: net/ipv4/ip_forward, value: "1"}], seccompProfile: {type: Localhost, localhostProfile: a/b.json}}
    securityContext: {privileged: true, allowPrivilegeEscalation: true, capabilities: {add: [NET_ADMIN]}, procMount: Default}
    volumeMounts: [{name: v, mountPath: /a, mountPropagation: Bidirectional}]
volumes: [{name: v}]`,
	`
hostNetwork: true
dnsPolicy: None
dnsConfig: {nameservers: [1.1.1.1, "::1"], searches: [a.b., ., _x.y], options: [{name: ndots, value: "5"}, {name: edns0}]}
hostAliases: [{ip: 1.2.3.4, hostnames: [a.b, c]}]
    ports: [{containerPort: 80}]`,
	`
tolerations: [{operator: Exists}, {key: a, value: b}, {key: a/b, operator: Exists, effect: NoExecute, tolerationSeconds: 5}, {key: a, operator: Gt, value: "5"}]
nodeSelector: {a: b}
affinity:
  nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: In, values: [b]}], matchFields: [{key: metadata.name, operator: In, values: [n]}]}]}}
  podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {topologyKey: a, labelSelector: {matchLabels: {a: b}}, matchLabelKeys: [c]}}]}
topologySpreadConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule, minDomains: 2}, {maxSkew: 1, topologyKey: a, whenUnsatisfiable: ScheduleAnyway}]`,
	`
os: {name: linux}
    lifecycle: {stopSignal: SIGRTMIN+3, postStart: {exec: {command: [x]}}, preStop: {httpGet: {port: web}}}
    livenessProbe: {tcpSocket: {port: 80}, terminationGracePeriodSeconds: 1}
    readinessProbe: {httpGet: {port: 80, httpHeaders: [{name: X-Y, value: z}]}, successThreshold: 3}`,
	`
hostUsers: false
    securityContext: {procMount: Unmasked}`,
	`
resources: {limits: {cpu: 2}, requests: {cpu: 1}}
    resources: {requests: {cpu: 1}}`,
	`
volumes:
- {name: a, secret: {secretName: x, items: [{key: k, path: a/b, mode: 0400}]}}
- {name: b, configMap: {name: x}}
- {name: c, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}, {path: cpu, resourceFieldRef: {containerName: main, resource: limits.cpu}}]}}
- {name: d, projected: {sources: [{secret: {name: x}}, {configMap: {name: w}}, {serviceAccountToken: {path: t}}, {clusterTrustBundle: {name: b, path: c}}, {podCertificate: {signerName: a.b/c, keyType: ED25519, credentialBundlePath: z}}]}}
- {name: e, csi: {driver: x.y}}
- {name: f, image: {reference: x}}
- {name: g, nfs: {server: x, path: /y}}
- {name: h, iscsi: {targetPortal: x, iqn: iqn.2001-04.com.example:storage, lun: 255}}
- {name: i, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}}}`,
	`
resourceClaims: [{name: c, resourceClaimName: x}]
    resources: {claims: [{name: c}, {name: c, request: r}]}
    restartPolicy: OnFailure
    restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [42]}}]
    resizePolicy: [{resourceName: cpu, restartPolicy: NotRequired}]`,
	`
evictionResponders: [{name: a.b/c, priority: 0}]
readinessGates: [{conditionType: a.b/c}]
schedulingGates: [{name: a.b/c}]`,
}
