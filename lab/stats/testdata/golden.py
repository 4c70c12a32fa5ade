import numpy as np, scipy.stats as st, json, scipy
rng=np.random.default_rng(7)
out={"scipy":scipy.__version__}
x=np.round(rng.lognormal(0,0.6,24),4); out["skewed"]=x.tolist()
def bca(x,f):
    r=st.bootstrap((x,),f,n_resamples=400000,confidence_level=0.95,method="BCa",random_state=np.random.default_rng(1),batch=20000)
    return [float(r.confidence_interval.low),float(r.confidence_interval.high)]
out["bca_mean"]=bca(x,np.mean); out["bca_median"]=bca(x,np.median)
out["quantiles"]={str(q):float(np.quantile(x,q)) for q in (0,.1,.25,.5,.9,.99,1)}
out["cv"]=float(np.std(x,ddof=1)/np.mean(x))
# The interval of Hettmansperger and Sheather (1986), from scipy's binomial distribution; its p-value by root finding.
def interval(x,level):
    x=np.sort(x); n=len(x)
    g=lambda k: 1-2*st.binom.cdf(k-1,n,.5) if k>0 else 1.
    k=max(j for j in range(0,(n+1)//2+1) if g(j)>=level)
    if k==0: return [-np.inf,np.inf]
    if k==(n+1)//2: return [float(x[k-1]),float(x[n-k])]
    i=(g(k)-level)/(g(k)-g(k+1)); lam=(n-k)*i/(k+(n-2*k)*i)
    return [float((1-lam)*x[k-1]+lam*x[k]),float((1-lam)*x[n-k]+lam*x[n-k-1])]
def pvalue(x):
    f=lambda a:(lambda lo,hi: -1. if lo<=0<=hi else 1.)(*interval(x,1-a))
    lo,hi=0.,1.
    for _ in range(60):
        m=(lo+hi)/2
        lo,hi=(m,hi) if f(m)<0 else (lo,m)
    return hi
out["medians"]=[]
for n in (6,7,8,12,20,31):
    for level in (.9,.95,.99167):
        d=np.round(rng.normal(0.25,0.4,n),4)
        i=interval(d,level)
        if np.isinf(i[0]): continue
        out["medians"].append({"x":d.tolist(),"level":level,"interval":i,"p":pvalue(d)})
X=np.array([0,1,2,5,9,10,20,50,100.]); Y=np.round(3+0.4*X+rng.normal(0,0.5,9),4); Y[3]=40
t=st.theilslopes(Y,X,method="joint"); out["line"]={"x":X.tolist(),"y":Y.tolist(),"b":float(t.slope),"a":float(t.intercept)}
# Laws that predict a block from the medians of the others, by numpy's least squares: relative to y, or of the logarithms. See "Shapes" in lab/DESIGN.md.
def law(name,x,y):
    near=lambda p: np.clip(p,np.log(y)-1,np.log(y)+1)
    if name=="exponential": return near(np.polyval(np.polyfit(x,np.log(y),1),x))
    if name=="power": return near(np.polyval(np.polyfit(np.log(x),np.log(y),1),np.log(x)))
    f=np.polyval(np.polyfit(x,y,{"constant":0,"linear":1,"quadratic":2}[name],w=1/y),x)/y
    return np.log(y*np.clip(f,np.exp(-1),np.exp(1)))
root=lambda v: float(np.sign(v)*np.sqrt(abs(v)))
def over(v): return [float(np.median(v)),*map(float,interval(v,.95))]
def shape(name,x,Y):
    Z=np.log(Y)-np.log(Y).mean(axis=1,keepdims=True); n=len(Y); E={}
    for b in range(n):
        m=np.median(np.delete(Z,b,axis=0),axis=0)
        for l,p in [(l,law(l,x,np.exp(m))) for l in ("constant","linear","quadratic","exponential","power")]+[("",m)]:
            E.setdefault(l,[]).append(np.var(Z[b]-p))
    E={l:np.array(e) for l,e in E.items()}; noise=E.pop("")*(n-1)/(n-1+np.pi/2)
    slopes=np.array([st.theilslopes(y,x).slope for y in Y])
    return {"errors":{l:root(np.median(e)) for l,e in E.items()},"noise":root(np.median(noise)),"misfit":[root(v) for v in interval(E[name]-noise,.95)],
        "behind":{l:[root(v) for v in interval(e-E[name],.95)] for l,e in E.items() if l!=name},"exponent":over([np.polyfit(np.log(x),np.log(y),1)[0] for y in Y]),
        "slope":over(slopes),"gain":over(slopes*(x.max()-x.min())/np.median(Y,axis=1))}
out["shapes"]=[]
for name,x,f in (("linear",[1,5,9,20,50,100],lambda x:10+2.3*x),("exponential",[1,2,5,9,20],lambda x:10*np.exp(.1*x)),("linear",[1,2,5,10,20,25,50],lambda x:3*x**.5),("linear",[1,5,9,20,50,100],lambda x:1+.01*x+.02*x*x),("linear",[1,2,5,9,20,50,100],lambda x:np.where(x<20,1,60)*x**.2)): # the last is beyond the limit of each law
    x=np.array(x,float); Y=np.round(f(x)*rng.lognormal(0,.1,(9,len(x))),4)
    out["shapes"].append({"law":name,"x":x.tolist(),"series":Y.T.tolist(),**shape(name,x,Y)})
print(json.dumps(out,indent=1))
