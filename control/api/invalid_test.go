package api

// invalidPods lists changes that make a pod invalid, with the beginning of every error they cause.
var invalidPods = []struct {
	change string
	want   []string
}{
	{`metadata: {namespace: x}`, []string{`metadata.name: Required value: name or generateName is required`}},
	{`metadata: {name: a}`, []string{`metadata.namespace: Required value`}},
	{`metadata: {name: a_b, namespace: A/B, labels: {"a b": x, c: "d e"}, annotations: {"a b": x}}`, []string{
		`metadata.name: Invalid value: "a_b"`, `metadata.namespace: Invalid value: "A/B"`, `metadata.labels: Invalid value: "a b"`, `metadata.labels: Invalid value: "d e"`, `metadata.annotations: Invalid value: "a b"`,
	}},
	{`containers: []`, []string{`spec.containers: Required value`}},
	{`containers: [{name: a}]`, []string{`spec.containers[0].image: Required value`}},
	{`containers: [{image: a}]`, []string{`spec.containers[0].name: Required value`}},
	{`containers: [{name: a, image: x}, {name: a, image: " x"}]`, []string{`spec.containers[1].name: Duplicate value: "a"`, `spec.containers[1].image: Invalid value: " x": must not have leading or trailing whitespace`}},
	{`containers: [{name: A_b, image: x}]`, []string{`spec.containers[0].name: Invalid value: "A_b"`}},
	{`
initContainers: [{name: main, image: x}]
ephemeralContainers: [{name: main, image: x, ports: [{containerPort: 1}], lifecycle: {}, targetContainerName: z}]`, []string{
		`spec.initContainers[0].name: Duplicate value: "main"`, `spec.ephemeralContainers[0].name: Duplicate value: "main"`, `spec.ephemeralContainers[0].ports: Forbidden`,
		`spec.ephemeralContainers[0].lifecycle: Forbidden`, `spec.ephemeralContainers[0].targetContainerName: Not found: "z"`,
	}},
	{`    imagePullPolicy: Sometimes`, []string{`spec.containers[0].imagePullPolicy: Unsupported value: "Sometimes": supported values: "Always", "IfNotPresent", "Never"`}},
	{`    terminationMessagePolicy: X`, []string{`spec.containers[0].terminationMessagePolicy: Unsupported value: "X"`}},

	{`    ports: [{containerPort: 0}, {containerPort: 65536}, {containerPort: 1, hostPort: -1}, {containerPort: 1, protocol: tcp}]`, []string{
		`spec.containers[0].ports[0].containerPort: Required value`, `spec.containers[0].ports[1].containerPort: Invalid value: 65536: must be between 1 and 65535`,
		`spec.containers[0].ports[2].hostPort: Invalid value: -1`, `spec.containers[0].ports[3].protocol: Unsupported value: "tcp"`,
	}},
	{`    ports: [{name: web, containerPort: 1}, {name: web, containerPort: 2}, {name: too-long-a-name-of-a-port, containerPort: 3}, {containerPort: 1, hostIP: x, hostPort: 5}]`, []string{
		`spec.containers[0].ports[1].name: Duplicate value: "web"`, `spec.containers[0].ports[2].name: Invalid value`, `spec.containers[0].ports[3].hostIP: Invalid value: "x"`,
	}},
	{`
initContainers: [{name: s, image: x, restartPolicy: Always, ports: [{containerPort: 1, hostPort: 80}]}]
    ports: [{containerPort: 80, hostPort: 80}, {containerPort: 81, hostPort: 80}]`, []string{
		`spec.containers[0].ports[1].hostPort: Duplicate value: "TCP//80"`, `spec.initContainers[0].ports[0].hostPort: Duplicate value: "TCP//80"`,
	}},
	{`
hostNetwork: true
    ports: [{containerPort: 80, hostPort: 81}]`, []string{`spec.containers[0].ports[0].hostPort: Invalid value: 81: must be the containerPort when hostNetwork is true`}},

	{`    env: [{value: x}, {name: "a=b"}, {name: A, valueFrom: {}}, {name: B, value: x, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]`, []string{
		`spec.containers[0].env[0].name: Required value`, `spec.containers[0].env[1].name: Invalid value: "a=b"`, `spec.containers[0].env[2].valueFrom: Invalid value: "": must specify one of`,
		`spec.containers[0].env[3].valueFrom: Invalid value: "": may not be specified when`,
	}},
	{`    env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.labels}}}, {name: B, valueFrom: {fieldRef: {fieldPath: "metadata.labels['a b']"}}}, {name: C, valueFrom: {fieldRef: {fieldPath: "metadata.name['x']"}}}, {name: D, valueFrom: {fieldRef: {fieldPath: ""}}}, {name: E, valueFrom: {fieldRef: {apiVersion: v2, fieldPath: metadata.name}}}]`, []string{
		`spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Unsupported value: "metadata.labels"`, `spec.containers[0].env[1].valueFrom.fieldRef.fieldPath: Invalid value`,
		`spec.containers[0].env[2].valueFrom.fieldRef.fieldPath: Invalid value: "metadata.name['x']": does not support subscript`, `spec.containers[0].env[3].valueFrom.fieldRef.fieldPath: Required value`,
		`spec.containers[0].env[4].valueFrom.fieldRef.fieldPath: Invalid value`,
	}},
	{`    env: [{name: A, valueFrom: {resourceFieldRef: {resource: limits.gpu}}}, {name: B, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1Mi}}}, {name: C, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1m}}}, {name: D, valueFrom: {resourceFieldRef: {resource: ""}}}]`, []string{
		`spec.containers[0].env[0].valueFrom.resourceFieldRef.resource: Unsupported value: "limits.gpu"`, `spec.containers[0].env[1].valueFrom.resourceFieldRef.divisor: Invalid value: "1Mi"`,
		`spec.containers[0].env[2].valueFrom.resourceFieldRef.divisor: Invalid value: "1m"`, `spec.containers[0].env[3].valueFrom.resourceFieldRef.resource: Required value`,
	}},
	{`    env: [{name: A, valueFrom: {configMapKeyRef: {name: "", key: "a b"}}}, {name: B, valueFrom: {secretKeyRef: {name: X, key: ""}}}]`, []string{
		`spec.containers[0].env[0].valueFrom.configMapKeyRef.name: Required value`, `spec.containers[0].env[0].valueFrom.configMapKeyRef.key: Invalid value: "a b"`,
		`spec.containers[0].env[1].valueFrom.secretKeyRef.name: Invalid value: "X"`, `spec.containers[0].env[1].valueFrom.secretKeyRef.key: Required value`,
	}},
	{`
volumes: [{name: v, hostPath: {path: /x}}]
    env: [{name: A, valueFrom: {fileKeyRef: {volumeName: v, path: ../x, key: "a=b"}}}, {name: B, valueFrom: {fileKeyRef: {volumeName: none, path: x, key: k}}}]`, []string{
		`spec.containers[0].env[0].valueFrom.fileKeyRef.key: Invalid value: "a=b"`, `spec.containers[0].env[0].valueFrom.fileKeyRef.path: Invalid value: "../x": must not contain '..'`,
		`spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName: Invalid value: "v": must be an emptyDir`, `spec.containers[0].env[1].valueFrom.fileKeyRef.volumeName: Not found: "none"`,
	}},
	{`    envFrom: [{}, {prefix: "a=", configMapRef: {name: ""}, secretRef: {name: s}}]`, []string{
		`spec.containers[0].envFrom[0]: Invalid value: "": must specify one of`, `spec.containers[0].envFrom[1].prefix: Invalid value`,
		`spec.containers[0].envFrom[1].configMapRef.name: Required value`, `spec.containers[0].envFrom[1]: Invalid value: "": may not have more than one field`,
	}},

	{`volumes: [{name: "", emptyDir: {}}, {name: A, emptyDir: {}}, {name: b, emptyDir: {}}, {name: b, emptyDir: {}}, {name: c, emptyDir: {}, hostPath: {path: /x}}]`, []string{
		`spec.volumes[0].name: Required value`, `spec.volumes[1].name: Invalid value: "A"`, `spec.volumes[3].name: Duplicate value: "b"`, `spec.volumes[4].emptyDir: Forbidden: may not specify more than 1 volume type`,
	}},
	{`volumes: [{name: a, emptyDir: {medium: Disk, sizeLimit: -1, mode: 02000}}, {name: b, emptyDir: {medium: HugePages-3Mi}}, {name: c, emptyDir: {medium: HugePages-x}}]`, []string{
		`spec.volumes[0].emptyDir.medium: Unsupported value: "Disk"`, `spec.volumes[0].emptyDir.sizeLimit: Forbidden`, `spec.volumes[0].emptyDir.mode: Invalid value`,
		`spec.volumes[1].emptyDir.medium: Invalid value`, `spec.volumes[2].emptyDir.medium: Invalid value`,
	}},
	{`volumes: [{name: a, hostPath: {path: ""}}, {name: b, hostPath: {path: /a/../b, type: Dir}}]`, []string{
		`spec.volumes[0].hostPath.path: Required value`, `spec.volumes[1].hostPath.path: Invalid value: "/a/../b": must not contain '..'`, `spec.volumes[1].hostPath.type: Unsupported value: "Dir"`,
	}},
	{`
volumes:
- {name: a, secret: {defaultMode: 01000, items: [{key: "", path: /x}, {key: k, path: ../x}, {key: k, path: ..x, mode: -1}, {key: k, path: ""}]}}
- {name: b, configMap: {}}
- {name: c, downwardAPI: {items: [{path: x}, {path: w, fieldRef: {fieldPath: status.podIP}}, {path: z, resourceFieldRef: {resource: limits.cpu}}]}}`, []string{
		`spec.volumes[0].secret.secretName: Required value`, `spec.volumes[0].secret.defaultMode: Invalid value: 512`, `spec.volumes[0].secret.items[0].key: Required value`,
		`spec.volumes[0].secret.items[0].path: Invalid value: "/x": must be a relative path`, `spec.volumes[0].secret.items[1].path: Invalid value: "../x": must not contain '..'`,
		`spec.volumes[0].secret.items[2].path: Invalid value: "..x": must not start with '..'`, `spec.volumes[0].secret.items[2].mode: Invalid value: -1`, `spec.volumes[0].secret.items[3].path: Required value`,
		`spec.volumes[1].configMap.name: Required value`, `spec.volumes[2].downwardAPI.items[0]: Required value`,
		`spec.volumes[2].downwardAPI.items[1].fieldRef.fieldPath: Unsupported value: "status.podIP"`, `spec.volumes[2].downwardAPI.items[2].resourceFieldRef.containerName: Required value`,
	}},
	{`
volumes:
- name: p
  projected:
    sources:
    - {}
    - {secret: {name: a, items: [{key: k, path: same}]}, configMap: {name: b, items: [{key: k, path: same}]}}
    - {serviceAccountToken: {expirationSeconds: 5}}
    - {clusterTrustBundle: {path: x}}
    - {podCertificate: {keyType: x, maxExpirationSeconds: 1}}`, []string{
		`spec.volumes[0].projected.sources[0]: Required value`, `spec.volumes[0].projected.sources[1]: Forbidden`, `spec.volumes[0].projected.sources[1].configMap.items[0].path: Invalid value: "same": conflicting`,
		`spec.volumes[0].projected.sources[2].serviceAccountToken.expirationSeconds: Invalid value: 5`, `spec.volumes[0].projected.sources[2].serviceAccountToken.path: Required value`,
		`spec.volumes[0].projected.sources[3].clusterTrustBundle: Invalid value`, `spec.volumes[0].projected.sources[4].podCertificate.signerName: Required value`,
		`spec.volumes[0].projected.sources[4].podCertificate.maxExpirationSeconds: Invalid value`, `spec.volumes[0].projected.sources[4].podCertificate: Required value`,
	}},
	{`
volumes:
- {name: a, nfs: {server: "", path: x}}
- {name: b, iscsi: {targetPortal: x, iqn: z, lun: 256, chapAuthSession: true}}
- {name: c, persistentVolumeClaim: {claimName: ""}}
- {name: d, csi: {driver: ""}}
- {name: e, image: {reference: "", pullPolicy: X}}
- {name: f, ephemeral: {}}
- {name: g, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [X]}}}}
- {name: h, fc: {}}
- {name: i, gitRepo: {repository: x, directory: ../y}}
- {name: j, flocker: {}}`, []string{
		`spec.volumes[0].nfs.server: Required value`, `spec.volumes[0].nfs.path: Invalid value: "x": must be an absolute path`, `spec.volumes[1].iscsi.iqn: Invalid value: "z"`,
		`spec.volumes[1].iscsi.lun: Invalid value: 256`, `spec.volumes[1].iscsi.secretRef: Required value`, `spec.volumes[2].persistentVolumeClaim.claimName: Required value`,
		`spec.volumes[3].csi.driver: Required value`, `spec.volumes[4].image.reference: Required value`, `spec.volumes[4].image.pullPolicy: Unsupported value`,
		`spec.volumes[5].ephemeral.volumeClaimTemplate: Required value`, `spec.volumes[6].ephemeral.volumeClaimTemplate.spec.accessModes[0]: Unsupported value`,
		`spec.volumes[6].ephemeral.volumeClaimTemplate.spec.resources.requests[storage]: Required value`, `spec.volumes[7].fc.targetWWNs: Required value`,
		`spec.volumes[8].gitRepo.directory: Invalid value`, `spec.volumes[9].flocker: Required value`,
	}},

	{`
volumes: [{name: v}, {name: i, image: {reference: x}}]
    volumeMounts:
    - {name: "", mountPath: /a}
    - {name: none, mountPath: /b}
    - {name: v, mountPath: ""}
    - {name: v, mountPath: /b}
    - {name: v, mountPath: /c, subPath: /x}
    - {name: v, mountPath: /d, subPath: a/../b}
    - {name: v, mountPath: /e, subPath: a, subPathExpr: b}
    - {name: v, mountPath: /f, mountPropagation: Bidirectional}
    - {name: v, mountPath: /g, mountPropagation: Shared}
    - {name: v, mountPath: /h, recursiveReadOnly: Enabled, mountPropagation: HostToContainer}
    - {name: i, mountPath: /i, bindMountOptions: [noexec, noexec, ro]}`, []string{
		`spec.containers[0].volumeMounts[0].name: Required value`, `spec.containers[0].volumeMounts[1].name: Not found: "none"`, `spec.containers[0].volumeMounts[2].mountPath: Required value`,
		`spec.containers[0].volumeMounts[3].mountPath: Invalid value: "/b": must be unique`, `spec.containers[0].volumeMounts[4].subPath: Invalid value: "/x": must be a relative path`,
		`spec.containers[0].volumeMounts[5].subPath: Invalid value: "a/../b": must not contain '..'`, `spec.containers[0].volumeMounts[6].subPathExpr: Invalid value`,
		`spec.containers[0].volumeMounts[7].mountPropagation: Forbidden`, `spec.containers[0].volumeMounts[8].mountPropagation: Unsupported value: "Shared"`,
		`spec.containers[0].volumeMounts[9].recursiveReadOnly: Forbidden: may only be specified when readOnly`, `spec.containers[0].volumeMounts[9].recursiveReadOnly: Forbidden: may only be specified when mountPropagation`,
		`spec.containers[0].volumeMounts[10].bindMountOptions[1]: Duplicate value`, `spec.containers[0].volumeMounts[10].bindMountOptions[2]: Unsupported value: "ro"`,
		`spec.containers[0].volumeMounts[10].bindMountOptions: Forbidden`,
	}},
	{`
volumes: [{name: v}, {name: p, persistentVolumeClaim: {claimName: x}}]
    volumeDevices: [{name: v, devicePath: /dev/x}, {name: p, devicePath: /dev/../x}, {name: p, devicePath: /m}]
    volumeMounts: [{name: v, mountPath: /m}]`, []string{
		`spec.containers[0].volumeDevices[0].name: Invalid value: "v": can only use`, `spec.containers[0].volumeDevices[1].devicePath: Invalid value`, `spec.containers[0].volumeDevices[2].name: Invalid value: "p": must be unique`,
		`spec.containers[0].volumeMounts[0].mountPath: Invalid value: "/m": must not already exist as a path in volumeDevices`, `spec.containers[0].volumeMounts[0].name: Invalid value: "v": must not already exist in volumeDevices`,
	}},

	{`
    livenessProbe: {exec: {command: [x]}, tcpSocket: {port: 1}, successThreshold: 2, periodSeconds: -1}
    readinessProbe: {terminationGracePeriodSeconds: 1}
    startupProbe: {httpGet: {port: 0, scheme: FTP, httpHeaders: [{name: "a b", value: x}]}, terminationGracePeriodSeconds: 0}`, []string{
		`spec.containers[0].livenessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type`, `spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1`,
		`spec.containers[0].livenessProbe.periodSeconds: Invalid value: -1: must be greater than or equal to 0`,
		`spec.containers[0].readinessProbe: Required value: must specify a handler type`, `spec.containers[0].readinessProbe.terminationGracePeriodSeconds: Invalid value: 1: must not be set for readinessProbes`,
		`spec.containers[0].startupProbe.httpGet.port: Invalid value: 0: must be between 1 and 65535`, `spec.containers[0].startupProbe.httpGet.scheme: Unsupported value: "FTP"`,
		`spec.containers[0].startupProbe.httpGet.httpHeaders[0].name: Invalid value: "a b"`, `spec.containers[0].startupProbe.terminationGracePeriodSeconds: Invalid value: 0: must be greater than 0`,
	}},
	{`
    livenessProbe: {exec: {}}
    readinessProbe: {grpc: {port: 0, mode: X}}
    startupProbe: {tcpSocket: {port: "A B"}}`, []string{
		`spec.containers[0].livenessProbe.exec.command: Required value`, `spec.containers[0].readinessProbe.grpc.port: Invalid value: 0`, `spec.containers[0].readinessProbe.grpc.mode: Unsupported value: "X"`,
		`spec.containers[0].startupProbe.tcpSocket.port: Invalid value: "A B"`, `spec.containers[0].startupProbe.tcpSocket.port: Invalid value: "A B"`,
	}},
	{`
terminationGracePeriodSeconds: 5
    lifecycle: {preStop: {sleep: {seconds: 6}}, postStart: {}, stopSignal: SIGTERM}`, []string{
		`spec.containers[0].lifecycle.preStop.sleep.seconds: Invalid value: 6`, `spec.containers[0].lifecycle.postStart: Required value`, `spec.containers[0].lifecycle.stopSignal: Forbidden`,
	}},
	{`
os: {name: linux}
    lifecycle: {stopSignal: TERM}`, []string{`spec.containers[0].lifecycle.stopSignal: Unsupported value: "TERM"`}},
	{`initContainers: [{name: i, image: x, lifecycle: {}, livenessProbe: {}, readinessProbe: {}, startupProbe: {}}]`, []string{
		`spec.initContainers[0].lifecycle: Forbidden`, `spec.initContainers[0].livenessProbe: Forbidden`, `spec.initContainers[0].readinessProbe: Forbidden`, `spec.initContainers[0].startupProbe: Forbidden`,
	}},
	{`initContainers: [{name: i, image: x, restartPolicy: Sometimes}]`, []string{`spec.initContainers[0].restartPolicy: Unsupported value: "Sometimes"`}},
	{`    restartPolicyRules: [{action: Stop, exitCodes: {operator: In}}, {action: Restart}]`, []string{
		`spec.containers[0].restartPolicy: Required value`, `spec.containers[0].restartPolicyRules[0].action: Unsupported value: "Stop"`,
		`spec.containers[0].restartPolicyRules[0].exitCodes.values: Required value`, `spec.containers[0].restartPolicyRules[1].exitCodes: Required value`,
	}},
	{`
restartPolicy: Never
    resizePolicy: [{resourceName: disk, restartPolicy: NotRequired}, {resourceName: cpu, restartPolicy: RestartContainer}, {resourceName: cpu, restartPolicy: NotRequired}]`, []string{
		`spec.containers[0].resizePolicy[0].resourceName: Unsupported value: "disk"`, `spec.containers[0].resizePolicy[1].restartPolicy: Invalid value`, `spec.containers[0].resizePolicy[2]: Duplicate value`,
	}},

	{`    resources: {limits: {cpu: -1, gpu: 1, "a b": 1, kubernetes.io/x: 1, example.com/x: 1500m}}`, []string{
		`spec.containers[0].resources.limits[cpu]: Invalid value: "-1": must be greater than or equal to 0`, `spec.containers[0].resources.limits[gpu]: Invalid value`, `spec.containers[0].resources.limits[a b]: Invalid value`,
		`spec.containers[0].resources.limits[kubernetes.io/x]: Invalid value`, `spec.containers[0].resources.limits[example.com/x]: Invalid value`,
		`spec.containers[0].resources.requests[cpu]: Invalid value: "-1"`, `spec.containers[0].resources.requests[gpu]: Invalid value`, `spec.containers[0].resources.requests[a b]: Invalid value`,
		`spec.containers[0].resources.requests[kubernetes.io/x]: Invalid value`, `spec.containers[0].resources.requests[example.com/x]: Invalid value`,
	}},
	{`    resources: {limits: {cpu: 1, example.com/x: 1}, requests: {cpu: 2, example.com/x: 2, example.com/y: 1}}`, []string{
		`spec.containers[0].resources.requests[cpu]: Invalid value: "2": must be less than or equal to cpu limit of 1`, `spec.containers[0].resources.requests[example.com/x]: Invalid value: "2": must be equal to`,
		`spec.containers[0].resources.requests[example.com/y]: Required value`,
	}},
	{`    resources: {limits: {hugepages-2Mi: 2Mi}}`, []string{`spec.containers[0].resources: Forbidden: HugePages require cpu or memory`}},
	{`    resources: {limits: {cpu: 1, hugepages-1e-999999999: 1}}`, []string{
		`spec.containers[0].resources.limits[hugepages-1e-999999999]: Invalid value: "hugepages-1e-999999999": must end in a page size`,
		`spec.containers[0].resources.requests[hugepages-1e-999999999]: Invalid value: "hugepages-1e-999999999": must end in a page size`,
	}},
	{`    resources: {limits: {cpu: 1, hugepages-2Mi: 3Mi, hugepages-x: 1}}`, []string{
		`spec.containers[0].resources.limits[hugepages-2Mi]: Invalid value: "3Mi"`, `spec.containers[0].resources.limits[hugepages-x]: Invalid value`,
		`spec.containers[0].resources.requests[hugepages-2Mi]: Invalid value: "3Mi"`, `spec.containers[0].resources.requests[hugepages-x]: Invalid value`,
	}},
	{`
resourceClaims: [{name: a}, {name: a, resourceClaimName: x}]
    resources: {claims: [{name: ""}, {name: b}, {name: a}, {name: a}]}`, []string{
		`spec.resourceClaims[0]: Invalid value: "a": must have exactly one`, `spec.resourceClaims[1].name: Duplicate value: "a"`, `spec.containers[0].resources.claims[0].name: Required value`,
		`spec.containers[0].resources.claims[1].name: Not found: "b"`, `spec.containers[0].resources.claims[3]: Duplicate value`,
	}},
	{`
resources: {limits: {cpu: 1}, requests: {cpu: 1}}
    resources: {limits: {cpu: 2}}`, []string{`spec.resources.requests[cpu]: Invalid value: "1": must be greater than or equal to aggregate`, `spec.containers[0].resources.limits[cpu]: Invalid value: "2": must be less than or equal to pod limits of 1`}},
	{`resources: {limits: {example.com/x: 1}, claims: [{name: x}]}`, []string{`spec.resources.limits[example.com/x]: Unsupported value`, `spec.resources.claims: Forbidden`}},
	{`overhead: {cpu: -1, gpu: 1}`, []string{`spec.overhead[cpu]: Invalid value`, `spec.overhead[gpu]: Invalid value`}},

	{`securityContext: {runAsUser: -1, runAsGroup: -1, fsGroup: 4294967296, supplementalGroups: [-5], fsGroupChangePolicy: X, supplementalGroupsPolicy: X, seLinuxChangePolicy: X}`, []string{
		`spec.securityContext.runAsUser: Invalid value: -1`, `spec.securityContext.runAsGroup: Invalid value: -1`, `spec.securityContext.fsGroup: Invalid value: 4294967296`, `spec.securityContext.supplementalGroups[0]: Invalid value: -5`,
		`spec.securityContext.fsGroupChangePolicy: Unsupported value`, `spec.securityContext.supplementalGroupsPolicy: Unsupported value`, `spec.securityContext.seLinuxChangePolicy: Unsupported value`,
	}},
	{`securityContext: {sysctls: [{name: "", value: x}, {name: a..b, value: x}, {name: net.a, value: x}, {name: net.a, value: y}], seccompProfile: {type: Localhost}, appArmorProfile: {type: RuntimeDefault, localhostProfile: x}}`, []string{
		`spec.securityContext.sysctls[0].name: Required value`, `spec.securityContext.sysctls[1].name: Invalid value: "a..b"`, `spec.securityContext.sysctls[3].name: Duplicate value: "net.a"`,
		`spec.securityContext.seccompProfile.localhostProfile: Required value`, `spec.securityContext.appArmorProfile.localhostProfile: Invalid value`,
	}},
	{`
hostNetwork: true
hostIPC: true
securityContext: {sysctls: [{name: net.core.somaxconn, value: "1"}, {name: kernel.shmmax, value: "1"}]}`, []string{
		`spec.securityContext.sysctls[0].name: Invalid value: "net.core.somaxconn"`, `spec.securityContext.sysctls[1].name: Invalid value: "kernel.shmmax"`,
	}},
	{`
os: {name: linux}
    securityContext: {privileged: true, allowPrivilegeEscalation: false, runAsUser: -1, procMount: Unmasked, windowsOptions: {}, seccompProfile: {type: Unconfined, localhostProfile: x}, appArmorProfile: {type: Localhost}, capabilities: {add: [CAP_SYS_ADMIN]}}`, []string{
		"spec.containers[0].securityContext: Invalid value: \"\": cannot set `allowPrivilegeEscalation` to false and `privileged` to true", "spec.containers[0].securityContext: Invalid value: \"\": cannot set `allowPrivilegeEscalation` to false and `capabilities",
		`spec.containers[0].securityContext.runAsUser: Invalid value: -1`, `spec.containers[0].securityContext.procMount: Invalid value`, `spec.containers[0].securityContext.windowsOptions: Forbidden`,
		`spec.containers[0].securityContext.seccompProfile.localhostProfile: Invalid value`, `spec.containers[0].securityContext.appArmorProfile.localhostProfile: Required value`,
	}},
	{`    securityContext: {seccompProfile: {type: Localhost, localhostProfile: ../x}, procMount: X}`, []string{`spec.containers[0].securityContext.seccompProfile.localhostProfile: Invalid value: "../x": must not contain '..'`, `spec.containers[0].securityContext.procMount: Unsupported value: "X"`}},

	{`
restartPolicy: Sometimes
dnsPolicy: Mine
terminationGracePeriodSeconds: -1
activeDeadlineSeconds: 0
preemptionPolicy: X
os: {name: beos}
nodeName: A_B
serviceAccountName: A_B
schedulerName: A_B
priorityClassName: A_B
runtimeClassName: A_B
hostname: a.b
subdomain: A
hostnameOverride: A`, []string{
		`spec.restartPolicy: Unsupported value: "Sometimes"`, `spec.dnsPolicy: Unsupported value: "Mine"`, `spec.terminationGracePeriodSeconds: Invalid value: -1`, `spec.activeDeadlineSeconds: Invalid value: 0`,
		`spec.preemptionPolicy: Unsupported value`, `spec.os.name: Unsupported value: "beos"`, `spec.nodeName: Invalid value`, `spec.serviceAccountName: Invalid value`, `spec.schedulerName: Invalid value`,
		`spec.priorityClassName: Invalid value`, `spec.runtimeClassName: Invalid value`, `spec.hostname: Invalid value: "a.b"`, `spec.subdomain: Invalid value: "A"`, `spec.hostnameOverride: Invalid value`,
	}},
	{`dnsPolicy: None`, []string{`spec.dnsConfig: Required value`}},
	{`
dnsPolicy: None
dnsConfig: {}`, []string{`spec.dnsConfig.nameservers: Required value`}},
	{`dnsConfig: {nameservers: [a, 1.1.1.1, 1.1.1.2, 1.1.1.3], searches: ["a b"], options: [{value: x}]}`, []string{
		`spec.dnsConfig.nameservers: Invalid value: ["a","1.1.1.1","1.1.1.2","1.1.1.3"]: must not have more than 3`, `spec.dnsConfig.nameservers[0]: Invalid value: "a"`, `spec.dnsConfig.searches[0]: Invalid value: "a b"`, `spec.dnsConfig.options[0].name: Required value`,
	}},
	{`hostAliases: [{ip: x, hostnames: [A_B]}]`, []string{`spec.hostAliases[0].ip: Invalid value: "x"`, `spec.hostAliases[0].hostnames[0]: Invalid value: "A_B"`}},
	{`
hostPID: true
shareProcessNamespace: true`, []string{`spec.shareProcessNamespace: Invalid value: true`}},
	{`
hostUsers: false
hostNetwork: true
hostPID: true
hostIPC: true`, []string{`spec.hostNetwork: Forbidden`, `spec.hostPID: Forbidden`, `spec.hostIPC: Forbidden`}},

	{`tolerations: [{}, {key: "a b", operator: Exists}, {key: a, operator: Exists, value: b}, {key: a, operator: X}, {key: a, effect: X}, {key: a, tolerationSeconds: 1}, {key: a, operator: Lt, value: x}]`, []string{
		`spec.tolerations[0].operator: Invalid value`, `spec.tolerations[1].key: Invalid value: "a b"`, `spec.tolerations[2].operator: Invalid value`, `spec.tolerations[3].operator: Unsupported value: "X"`,
		`spec.tolerations[4].effect: Unsupported value: "X"`, `spec.tolerations[5].effect: Invalid value`, `spec.tolerations[6].value: Invalid value: "x"`,
	}},
	{`
nodeSelector: {"a b": c}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: []}
    preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 0
      preference: {matchExpressions: [{key: a, operator: In}, {key: a, operator: Exists, values: [x]}, {key: a, operator: Gt, values: [x]}, {key: a, operator: X}], matchFields: [{key: x, operator: Gt, values: [a, b]}]}
  podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{labelSelector: {matchLabels: {"a b": c}}, namespaces: [A]}]}
  podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 101, podAffinityTerm: {topologyKey: a, matchLabelKeys: [b]}}]}`, []string{
		`spec.nodeSelector: Invalid value: "a b"`, `spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: Required value`,
		`spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: Invalid value: 0`,
		`spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[0].values: Required value`,
		`spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[1].values: Forbidden`,
		`spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[2].values[0]: Invalid value`,
		`spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[3].operator: Invalid value`,
		`spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchFields[0].operator: Unsupported value`,
		`spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchFields[0].key: Invalid value`,
		`spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchFields[0].values: Required value`,
		`spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector.matchLabels: Invalid value`,
		`spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].namespace: Invalid value: "A"`,
		`spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey: Required value`,
		`spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: Invalid value: 101`,
		`spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.matchLabelKeys: Forbidden`,
	}},
	{`topologySpreadConstraints: [{maxSkew: 0, whenUnsatisfiable: X, minDomains: 0, nodeAffinityPolicy: X, nodeTaintsPolicy: X}, {maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule}, {maxSkew: 2, topologyKey: a, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {x: z}}, matchLabelKeys: [x]}]`, []string{
		`spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0`, `spec.topologySpreadConstraints[0].topologyKey: Required value`, `spec.topologySpreadConstraints[0].whenUnsatisfiable: Unsupported value`,
		`spec.topologySpreadConstraints[0].minDomains: Invalid value: 0: must be`, `spec.topologySpreadConstraints[0].minDomains: Invalid value: 0: can only`, `spec.topologySpreadConstraints[0].nodeAffinityPolicy: Unsupported value`,
		`spec.topologySpreadConstraints[0].nodeTaintsPolicy: Unsupported value`, `spec.topologySpreadConstraints[2].{topologyKey, whenUnsatisfiable}: Duplicate value`, `spec.topologySpreadConstraints[2].matchLabelKeys[0]: Invalid value: "x"`,
	}},
	{`
nodeName: n
schedulingGates: [{name: "a b"}, {name: c}, {name: c}]
readinessGates: [{conditionType: "a b"}]
schedulingGroup: {}
evictionResponders: [{name: x}, {name: a.b/c, priority: -1}]`, []string{
		`spec.schedulingGates[0].name: Invalid value: "a b"`, `spec.schedulingGates[2]: Duplicate value: "c"`, `spec.nodeName: Forbidden`, `spec.readinessGates[0].conditionType: Invalid value: "a b"`,
		`spec.schedulingGroup.podGroupName: Required value`, `spec.evictionResponders: Forbidden`, `spec.evictionResponders[0].name: Invalid value`, `spec.evictionResponders[0].priority: Required value`, `spec.evictionResponders[1].priority: Invalid value: -1`,
	}},
}
