// Command devicemanager is the kubelet's own device manager without a kubelet. It obeys lines on its standard input and
// answers each with a line of JSON. Its directory is /var/lib/kubelet/device-plugins, of a mount namespace of its own.
//
//	admit POD NUMBER RESOURCE   a pod with one container, which wants so many devices
//	start POD                   what the kubelet asks before it creates the container
//	end POD                     the pod is gone
//	offers RESOURCE             the capacity of the node, and how much of it is allocatable
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
)

const container = "main"

type answer struct {
	Error       string   `json:"error"`
	Devices     []string `json:"devices,omitempty"`
	Capacity    int64    `json:"capacity"`
	Allocatable int64    `json:"allocatable"`
}

type ready struct{}

func (ready) AddSource(string) {}
func (ready) AllReady() bool   { return true }

type pods struct {
	sync.Mutex
	known map[string]*core.Pod
}

func (p *pods) active() (all []*core.Pod) {
	p.Lock()
	defer p.Unlock()
	for _, pod := range p.known {
		all = append(all, pod)
	}
	return all
}

func (p *pods) forget(name string) {
	p.Lock()
	defer p.Unlock()
	delete(p.known, name)
}

func (p *pods) make(name string, number int64, wanted core.ResourceName) *core.Pod {
	limits := core.ResourceList{wanted: *resource.NewQuantity(number, resource.DecimalSI)}
	spec := core.Container{Name: container, Resources: core.ResourceRequirements{Limits: limits, Requests: limits}}
	pod := &core.Pod{
		ObjectMeta: meta.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)},
		Spec:       core.PodSpec{Containers: []core.Container{spec}},
	}
	p.Lock()
	defer p.Unlock()
	p.known[name] = pod
	return pod
}

func main() {
	ctx, logger, all := context.Background(), klog.Background(), &pods{known: map[string]*core.Pod{}}
	manager, err := devicemanager.NewManagerImpl(logger, nil, topologymanager.NewFakeManager(logger))
	if err == nil {
		err = manager.Start(logger, all.active, ready{}, containermap.NewContainerMap(), sets.New[string]())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot start the device manager:", err)
		os.Exit(1)
	}
	said := json.NewEncoder(os.Stdout)
	said.Encode(answer{})
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		words, err, found := strings.Fields(lines.Text()), error(nil), answer{}
		switch name := words[1]; words[0] {
		case "admit":
			number, _ := strconv.ParseInt(words[2], 10, 64)
			pod := all.make(name, number, core.ResourceName(words[3]))
			if err = manager.Allocate(ctx, pod, &pod.Spec.Containers[0], lifecycle.AddOperation); err != nil {
				all.forget(name)
			}
			for _, devices := range manager.GetDevices(name, container) {
				for id := range devices {
					found.Devices = append(found.Devices, id)
				}
			}
		case "start":
			pod := all.known[name]
			_, err = manager.GetDeviceRunContainerOptions(ctx, pod, &pod.Spec.Containers[0])
		case "end":
			all.forget(name)
			manager.UpdateAllocatedDevices(logger)
		case "offers":
			capacity, allocatable, _ := manager.GetCapacity(logger)
			whole, free := capacity[core.ResourceName(name)], allocatable[core.ResourceName(name)]
			found.Capacity, found.Allocatable = whole.Value(), free.Value()
		}
		if err != nil {
			found.Error = err.Error()
		}
		said.Encode(found)
	}
}
