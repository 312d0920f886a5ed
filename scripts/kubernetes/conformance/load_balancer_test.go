package conformance

import (
	"context"
	"fmt"
	"log"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// assigner is the controller of load balancers: it assigns the addresses, and kube-proxy serves them.
type assigner struct {
	client kubernetes.Interface
	// What addresses start with; they differ in their last byte.
	prefix string
	used   map[string]string
}

// start assigns addresses until the context ends.
func (a *assigner) start(ctx context.Context) {
	a.used = map[string]string{}
	factory := informers.NewSharedInformerFactory(a.client, 0)
	// One goroutine calls all three.
	_, err := factory.Core().V1().Services().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(service any) { a.assign(ctx, service.(*corev1.Service)) },
		UpdateFunc: func(_, service any) { a.assign(ctx, service.(*corev1.Service)) },
		DeleteFunc: func(object any) {
			if service, ok := object.(*corev1.Service); ok {
				a.release(service)
			}
		},
	})
	if err != nil {
		log.Fatalf("the Services cannot be watched: %v", err)
	}
	factory.Start(ctx.Done())
}

func (a *assigner) assign(ctx context.Context, service *corev1.Service) {
	if service.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return
	}
	address := a.address(service)
	var wanted []corev1.LoadBalancerIngress
	if address != "" {
		wanted = []corev1.LoadBalancerIngress{{IP: address}}
	}
	current := service.Status.LoadBalancer.Ingress
	if len(current) == len(wanted) && (len(wanted) == 0 || current[0].IP == address) {
		return
	}
	changed := service.DeepCopy()
	changed.Status.LoadBalancer.Ingress = wanted
	if _, err := a.client.CoreV1().Services(service.Namespace).UpdateStatus(ctx, changed, metav1.UpdateOptions{}); err != nil {
		// The next event of the Service tries again.
		log.Printf("%s/%s gets no address: %v", service.Namespace, service.Name, err)
	}
}

// address returns the one that the Service has, or asks for, or the next that is free; empty: it asks for one that is not here.
func (a *assigner) address(service *corev1.Service) string {
	owner := service.Namespace + "/" + service.Name
	if asked := service.Spec.LoadBalancerIP; asked != "" {
		if !strings.HasPrefix(asked, a.prefix) || (a.used[asked] != "" && a.used[asked] != owner) {
			return ""
		}
		a.release(service)
		a.used[asked] = owner
		return asked
	}
	for last := 1; last < 255; last++ {
		if address := fmt.Sprint(a.prefix, last); a.used[address] == owner {
			return address
		}
	}
	// The first addresses are those that Gateways of tests ask for.
	for last := 16; last < 255; last++ {
		if address := fmt.Sprint(a.prefix, last); a.used[address] == "" {
			a.used[address] = owner
			return address
		}
	}
	return ""
}

func (a *assigner) release(service *corev1.Service) {
	for address, owner := range a.used {
		if owner == service.Namespace+"/"+service.Name {
			delete(a.used, address)
		}
	}
}
